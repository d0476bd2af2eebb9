"""vLLM's CPU attention: cpu_attention_with_kv_cache over its paged cache, reshape_and_cache, rotary_embedding. Scheduler metadata is built once, as
it is for all layers of a step."""
from __future__ import annotations

import numpy as np
import torch

from ..cases import NARROW, Case
from ..shim import APPEND_STRIDE
from ..tensors import ROPE_THETA, Tensors, copies, to_bits
from ..work import Refused, Work, attention_amount
from . import torch_common as common
from . import vllm_library

BLOCK = 128  # vLLM's default on CPUs


def attention_isa() -> str:
    return "amx" if torch.cpu._is_amx_tile_supported() else "vec"


class Peer:
    def __init__(self, threads: int) -> None:
        self._versions = common.start(threads) | vllm_library.load()

    def versions(self) -> dict[str, str]:
        return self._versions

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.type == "fp8" and not torch.cpu._is_avx512_supported():
            raise Refused("FP8 KV cache on CPU requires x86 with AVX-512 or AMX")  # vllm/v1/attention/backends/cpu_attn.py
        if case.type in ("int8", "int4"):
            raise Refused(f"no {case.type} cache on CPUs")
        return {"rope": self._rope, "append": self._append}.get(case.kind, self._attention)(case, tensors)

    def _cache(self, case: Case) -> np.ndarray:
        """[blocks, kv_heads, K then V, tokens of a block, dim], zeroed."""
        blocks = case.batch * -(-case.tokens // BLOCK)
        element = np.uint8 if case.type == "fp8" else to_bits(np.zeros(1), case.type).dtype
        return np.zeros((blocks, case.kv_heads, 2 * BLOCK, case.dim), dtype=element)

    @staticmethod
    def _halves(cache: np.ndarray) -> tuple[torch.Tensor, ...]:
        return common.wrap(cache).chunk(2, dim=2)

    @staticmethod
    def _cache_type(case: Case) -> str:
        return "fp8" if case.type == "fp8" else "auto"

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        element_type = "bf16" if case.type in NARROW else case.type
        first = self._cache(case)
        blocks = torch.from_numpy(np.random.default_rng(3).permutation(len(first)).astype(np.int32)).view(case.batch, -1)
        tokens = torch.arange(case.tokens)
        slots = (blocks[:, tokens // BLOCK].long() * BLOCK + tokens % BLOCK).flatten()
        k, v = (common.tensor(x.reshape(-1, case.kv_heads, case.dim), element_type) for x in (tensors.k, tensors.v))
        isa, cache_type = attention_isa(), self._cache_type(case)
        torch.ops._C.cpu_attn_reshape_and_cache(k, v, *self._halves(first), slots, isa, 1.0, 1.0, cache_type)
        buffers = [self._halves(c) for c in (copies(first) if case.kind != "prefill" else [first])]
        q = common.tensor(tensors.q.reshape(-1, case.heads, case.dim), element_type)
        out = torch.empty_like(q)
        q_starts = torch.arange(case.batch + 1, dtype=torch.int32) * case.queries
        lengths = torch.full((case.batch,), case.tokens, dtype=torch.int32)
        metadata = torch.ops._C.get_scheduler_metadata(case.batch, case.heads, case.kv_heads, case.dim, lengths, q.dtype, q_starts, True, -1, isa,
                                                       True, None, cache_type)
        slopes = torch.from_numpy(tensors.slopes) if case.kind == "alibi" else None
        attend, scale = torch.ops._C.cpu_attention_with_kv_cache.default, case.dim ** -0.5

        def call(i: int) -> None:
            keys, values = buffers[i % len(buffers)]
            attend(q, keys, values, out, q_starts, lengths, scale, True, slopes, -1, blocks, 0.0, metadata, None, None, 1.0, 1.0, cache_type)

        return Work(call, attention_amount(case, first.nbytes), lambda: common.values(out))

    def _append(self, case: Case, tensors: Tensors) -> Work:
        element_type = "bf16" if case.type in NARROW else case.type
        buffers = [self._halves(c) for c in copies(self._cache(case))]
        k, v = (common.tensor(x[0, -1:], element_type) for x in (tensors.k, tensors.v))
        slots = [torch.tensor([i * APPEND_STRIDE % case.tokens]) for i in range(case.tokens)]
        append, isa, cache_type = torch.ops._C.cpu_attn_reshape_and_cache.default, attention_isa(), self._cache_type(case)

        def call(i: int) -> None:
            append(k, v, *buffers[i % len(buffers)], slots[i % len(slots)], isa, 1.0, 1.0, cache_type)

        return Work(call, note="cpu_attn_reshape_and_cache")

    def _rope(self, case: Case, tensors: Tensors) -> Work:
        half = case.dim // 2
        angle = np.arange(tensors.positions[-1] + 1)[:, None] * ROPE_THETA ** (-np.arange(half) / half)
        table = common.tensor(np.concatenate((np.cos(angle), np.sin(angle)), axis=1), case.type)
        positions = torch.from_numpy(tensors.positions)
        x = to_bits(tensors.x, case.type)
        buffers = [common.wrap(b).view(case.tokens, -1) for b in (copies(x) if case.tokens > 1 else [x.copy()])]
        rotate = torch.ops._C.rotary_embedding.default

        def call(i: int) -> None:
            rotate(positions, buffers[i % len(buffers)], None, case.dim, table, True)

        return Work(call, 2e-9 * x.nbytes, lambda: common.values(buffers[0]).reshape(x.shape), "in place")
