"""decode_step.py CHECKPOINT [--tokens 4096] [--batch 1] [--steps 9] [--prefill]: a step of a model of transformers, ropewalk beside sdpa, in turn.

Decoding: caches hold random K and V, the same work as after a prompt. --prefill: a prompt of that many tokens, and empty caches. Prints the median of
each and the median of the ratios of neighbours."""

import argparse
import statistics
import time

import ropewalk.transformers as rt
import torch
from transformers import AutoModelForCausalLM, DynamicCache

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--tokens", type=int, default=4096)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--steps", type=int, default=9)
parser.add_argument("--dtypes", default="bfloat16,float32")
parser.add_argument("--prefill", action="store_true")
arguments = parser.parse_args()
rt.register()


def new_caches(config):
    return {"sdpa": DynamicCache(config=config), "ropewalk": rt.RopewalkCache(config, max_tokens=arguments.tokens + 64)}


def step(model, implementation, cache):
    model.set_attn_implementation(implementation)
    queries, first = (arguments.tokens, 0) if arguments.prefill else (1, cache.get_seq_length())
    tokens = torch.full((arguments.batch, queries), 5)
    positions = torch.arange(first, first + queries).expand(arguments.batch, -1)
    begin = time.perf_counter()
    with torch.no_grad():
        model(input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return 1e3 * (time.perf_counter() - begin)


for dtype in arguments.dtypes.split(","):
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=getattr(torch, dtype)).eval()
    config, caches = model.config, new_caches(model.config)
    for layer in range(0 if arguments.prefill else config.num_hidden_layers):
        shape = (arguments.batch, config.num_key_value_heads, arguments.tokens, config.head_dim)
        key, value = (torch.randn(shape, dtype=model.dtype) for _ in range(2))
        for cache in caches.values():
            cache.update(key, value, layer)
    warm = 1 if arguments.prefill else 2
    times = {name: [] for name in caches}
    for turn in range(arguments.steps + warm):
        if arguments.prefill:
            caches = new_caches(config)
        for name, cache in caches.items():
            measured = step(model, name, cache)
            if turn >= warm:
                times[name].append(measured)
    ratio = statistics.median(a / b for a, b in zip(times["sdpa"], times["ropewalk"], strict=True))
    medians = ", ".join(f"{name} {statistics.median(t):.1f} ms" for name, t in times.items())
    what = "prompt of" if arguments.prefill else "decoding at"
    print(f"{dtype}, {what} {arguments.tokens} tokens, batch {arguments.batch}: {medians}, ratio {ratio:.2f}", flush=True)
