"""torch's FlexAttention and rope, both compiled."""
from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..cases import Case
from ..tensors import Tensors
from ..work import Refused, Work
from . import torch_sdpa


class Peer(torch_sdpa.Peer):
    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.kind == "append":
            raise Refused("FlexAttention has no cache of its own")
        torch.compiler.reset()
        return super().prepare(case, tensors)

    def attend(self, case: Case, tensors: Tensors):
        compiled = torch.compile(flex_attention, dynamic=False)
        slopes = torch.from_numpy(tensors.slopes)

        def bias(score, batch, head, query, key):
            return score - slopes[head] * (case.tokens - 1 - key)

        def sees(batch, head, query, key):
            return query >= key

        block_mask = create_block_mask(sees, None, None, case.tokens, case.tokens, device="cpu") if case.kind == "prefill" else None
        score_mod = bias if case.kind == "alibi" else None
        return lambda q, k, v: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=True)

    def rope_function(self):
        return torch.compile(torch_sdpa.rotate, dynamic=False)
