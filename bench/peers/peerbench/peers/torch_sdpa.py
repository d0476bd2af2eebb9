"""torch.nn.functional.scaled_dot_product_attention over a static cache [batch, kv_heads, tokens, dim]; rope as transformers writes it, eager."""
from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from ..cases import NARROW, Case
from ..shim import APPEND_STRIDE
from ..tensors import ROPE_THETA, Tensors, copies, pair_copies, to_bits
from ..work import Refused, Work, attention_amount
from . import torch_common as common


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Peer:
    def __init__(self, threads: int) -> None:
        self._versions = common.start(threads)

    def versions(self) -> dict[str, str]:
        return self._versions

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.type in NARROW:
            raise Refused(f"scaled_dot_product_attention has no {case.type}")
        return {"rope": self.rope, "append": self._append}.get(case.kind, self.attention)(case, tensors)

    def attention(self, case: Case, tensors: Tensors) -> Work:
        q = common.tensor(tensors.q.transpose(0, 2, 1, 3), case.type)
        k, v = (to_bits(common.head_major(x), case.type) for x in (tensors.k, tensors.v))
        buffers = [(common.wrap(a), common.wrap(b)) for a, b in (pair_copies(k, v) if case.kind != "prefill" else [(k, v)])]
        attend = self.attend(case, tensors)
        result: list[torch.Tensor] = [q]

        def call(i: int) -> None:
            result[0] = attend(q, *buffers[i % len(buffers)])

        return Work(call, attention_amount(case, k.nbytes + v.nbytes),
                    lambda: common.values(result[0].transpose(1, 2)).reshape(-1, case.heads, case.dim))

    def attend(self, case: Case, tensors: Tensors):
        """The function of (q, k, v) that is measured."""
        mask = None
        if case.kind == "alibi":
            distance = np.arange(case.tokens - 1, -1, -1, dtype=np.float32)
            mask = common.tensor(-tensors.slopes[None, :, None, None] * distance, case.type)
        causal = case.kind == "prefill"
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)

    def rope(self, case: Case, tensors: Tensors) -> Work:
        half = case.dim // 2
        angle = tensors.positions[:, None] * ROPE_THETA ** (-np.arange(half) / half)
        cos, sin = (common.tensor(np.tile(f(angle), 2)[:, None, :], case.type) for f in (np.cos, np.sin))
        x = to_bits(tensors.x, case.type)
        buffers = [common.wrap(b) for b in (copies(x) if case.tokens > 1 else [x])]
        function = self.rope_function()
        result: list[torch.Tensor] = [cos]

        def call(i: int) -> None:
            result[0] = function(buffers[i % len(buffers)], cos, sin)

        return Work(call, 2e-9 * x.nbytes, lambda: common.values(result[0]), "out of place")

    def rope_function(self):
        return rotate

    def _append(self, case: Case, tensors: Tensors) -> Work:
        k, v = (to_bits(common.head_major(x), case.type) for x in (tensors.k, tensors.v))
        buffers = [(common.wrap(a), common.wrap(b)) for a, b in pair_copies(k, v)]
        new_k, new_v = (common.tensor(x[:, -1:].transpose(0, 2, 1, 3), case.type) for x in (tensors.k, tensors.v))
        slots = [torch.tensor([i * APPEND_STRIDE % case.tokens]) for i in range(case.tokens)]

        def call(i: int) -> None:
            keys, values = buffers[i % len(buffers)]
            keys.index_copy_(2, slots[i % len(slots)], new_k)
            values.index_copy_(2, slots[i % len(slots)], new_v)

        return Work(call, note="index_copy_ of a static cache")
