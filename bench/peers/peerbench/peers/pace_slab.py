"""AMD PACE: the SlabPool of the pace-vllm wheel, and its rope. bf16 only."""
from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import torch

from ..cases import Case
from ..tensors import ROPE_THETA, Tensors, buffer_count, copies, to_bits
from ..work import Refused, Work, attention_amount
from . import torch_common as common


class Peer:
    def __init__(self, threads: int) -> None:
        self._versions = common.start(threads) | {"pace-vllm": importlib.metadata.version("pace-vllm")}
        spec = importlib.util.find_spec("pace_vllm")
        torch.ops.load_library(str(Path(spec.submodule_search_locations[0]) / "lib" / "libpace_cpp.so"))

    def versions(self) -> dict[str, str]:
        return self._versions

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.type != "bf16":
            raise Refused("bf16 only")
        if case.kind == "alibi":
            raise Refused("no ALiBi (the argument is accepted and ignored)")
        if case.kind == "append":
            raise Refused("cache_update always extends the sequence")
        return self._rope(case, tensors) if case.kind == "rope" else self._attention(case, tensors)

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        block = int(torch.ops.pace.slab_autotune_block_size(case.kv_heads, case.dim))
        blocks = case.batch * -(-case.tokens // block)
        kv_bytes = 4 * case.batch * case.tokens * case.kv_heads * case.dim
        k, v = (common.tensor(x.reshape(-1, case.kv_heads, case.dim), case.type) for x in (tensors.k, tensors.v))
        sequences = list(range(1, case.batch + 1))

        def filled():
            pool = torch.classes.pace.SlabPool(blocks, case.kv_heads, case.dim, block)
            for sequence in sequences:
                pool.create_sequence(sequence, case.tokens)
            pool.cache_update(sequences, k, v, [case.tokens] * case.batch)
            return pool

        pools = [filled() for _ in range(buffer_count(kv_bytes) if case.kind == "decode" else 1)]
        q = common.tensor(tensors.q.reshape(-1, case.heads, case.dim), case.type)
        no_sinks, scale, lengths = torch.tensor([], dtype=torch.bfloat16), case.dim ** -0.5, [case.queries] * case.batch
        result: list[torch.Tensor] = [q]

        def call(i: int) -> None:
            result[0] = pools[i % len(pools)].attention(sequences, q, lengths, [], scale, 0, no_sinks)

        return Work(call, attention_amount(case, kv_bytes), lambda: common.values(result[0]))

    def _rope(self, case: Case, tensors: Tensors) -> Work:
        half = case.dim // 2
        angle = tensors.positions[:, None] * ROPE_THETA ** (-np.arange(half) / half)
        cos, sin = (common.tensor(f(angle)[None], case.type) for f in (np.cos, np.sin))
        x = to_bits(tensors.x[None], case.type)
        # the operator rotates q and k: the heads of the case are split between the two
        buffers = [common.wrap(b).split((case.heads - 8, 8), dim=2) for b in (copies(x) if case.tokens > 1 else [x])]
        result: list[tuple[torch.Tensor, torch.Tensor]] = []

        def call(i: int) -> None:
            result[:] = [torch.ops.pace.fused_rope_apply(*buffers[i % len(buffers)], cos, sin, 2)]

        return Work(call, 2e-9 * x.nbytes, lambda: common.values(torch.cat(result[0], dim=2))[0], "out of place")
