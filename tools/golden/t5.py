"""t5/: bucket maps and attention with their bias."""

import math

import torch

from cases import Gives, Kind, additive, attend64, heads_first, load, tokens_heads

T5 = "transformers.models.t5."


def bucket64(relative, bidirectional, buckets, most):
    """The formula with an fp64 logarithm; relative is key minus query."""
    first = torch.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        first, distance = (relative > 0) * buckets, relative.abs()
    else:
        distance = (-relative).clamp(min=0)
    exact = buckets // 2
    steps = torch.log(distance.clamp(min=1).double() / exact) / math.log(most / exact) * (buckets - exact)
    far = (exact + steps.long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)


def buckets(case):
    published, outputs = load(case.source.rpartition(".")[0])._relative_position_bucket, {}
    for count, most in case.params["combos"]:
        for bidirectional in (True, False):
            name = f"bucket_{'bidir' if bidirectional else 'causal'}_n{count}_d{most}"
            outputs[name] = published(case.relative_position, bidirectional, count, most)
            outputs[name + "_f64"] = bucket64(case.relative_position, bidirectional, count, most)
    return outputs


def attention(case):
    params, past, rows = case.params, case.params["past"], case.params["S"]
    heads, keys = params["H"], past + rows
    config = load(T5 + "configuration_t5.T5Config")(
        d_model=heads * params["D"], d_kv=params["D"], num_heads=heads, relative_attention_num_buckets=params["num_buckets"],
        relative_attention_max_distance=params["max_distance"], is_decoder=not params["bidirectional"], attn_implementation="eager",
    )
    module = load(case.source)(config, has_relative_attention_bias=True, layer_idx=0).eval()
    module.relative_attention_bias.weight.data = case.bias_table
    module.q, module.k, module.v = (Gives(tokens_heads(x)) for x in (case.q, case.k, case.v))
    module.o = torch.nn.Identity()
    i, j = past + torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    keep = j <= i if params["causal"] else torch.ones(rows, keys, dtype=torch.bool)
    bias = module.compute_bias(rows, keys, past_seen_tokens=past)
    hidden, memory = torch.zeros(1, rows, heads * params["D"]), torch.zeros(1, keys, heads * params["D"])
    out = module(hidden, additive(keep)[None, None], key_value_states=memory, position_bias=bias)[0]
    exact = case.bias_table[bucket64(j - i, params["bidirectional"], params["num_buckets"], params["max_distance"])].permute(2, 0, 1)[None]
    truth, lse, _ = attend64(case.q, case.k, case.v, params["scale"], keep, exact)
    return {"position_bias": bias, "out": heads_first(out, heads), "out_f64": truth, "lse_f64": lse, "keep": keep.to(torch.uint8)}


KINDS = {"t5_buckets": Kind(buckets), "t5_attention": Kind(attention, ("q", "k", "v", "bias_table"))}
