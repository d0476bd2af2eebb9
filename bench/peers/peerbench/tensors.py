"""The tensors of a case and what attention over them must give, in fp64."""
from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from .cases import Case

Array = np.ndarray
WORKING_SET = 512 << 20  # buffers that a call rotates over exceed every cache: 16 times an L3 of 32 MiB
ROPE_THETA = 10000.0
# Largest absolute errors of implementations that agree; a wrong layout, mask or scale gives 0.1 and more. The narrow types' includes quantisation;
# rope's is for phases that are formed in fp32.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 1e-2, "int8": 2e-2, "int4": 8e-2, "fp8": 8e-2}
ROPE_TOLERANCE = {"fp32": 1e-2, "bf16": 1e-1, "fp16": 1e-2}


def to_bits(values: Array, element_type: str) -> Array:
    """fp32 values as the type, rounded to nearest even; bf16 as uint16."""
    if element_type == "fp32":
        return np.ascontiguousarray(values, dtype=np.float32)
    if element_type == "fp16":
        return values.astype(np.float16)
    if element_type == "bf16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    raise ValueError(f"{element_type} is no type of plain elements")


def to_float(bits: Array) -> Array:
    """The reverse of to_bits."""
    if bits.dtype == np.uint16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)


def buffer_count(one_buffer: int) -> int:
    return max(2, -(-WORKING_SET // one_buffer))


def copies(first: Array) -> list[Array]:
    """Equal buffers whose sum exceeds every cache. What is read costs the same as if they differed."""
    return [first.copy() for _ in range(buffer_count(first.nbytes))]


def pair_copies(k: Array, v: Array) -> list[tuple[Array, Array]]:
    return [(k.copy(), v.copy()) for _ in range(buffer_count(k.nbytes + v.nbytes))]


class Tensors:
    """q [batch, queries, heads, dim], k and v [batch, tokens, kv_heads, dim], fp32 values of N(0, 1) that the query type represents exactly."""

    def __init__(self, case: Case) -> None:
        generator = np.random.default_rng(zlib.crc32(case.name.encode()))

        def normal(*shape: int) -> Array:
            return to_float(to_bits(generator.standard_normal(shape, dtype=np.float32), case.query_type))

        self.case = case
        if case.kind == "rope":
            self.x = normal(case.tokens, case.heads, case.dim)
            self.positions = np.arange(case.tokens, dtype=np.int64) + (4095 if case.tokens == 1 else 0)
            return
        self.q = normal(case.batch, case.queries, case.heads, case.dim)
        self.k = normal(case.batch, case.tokens, case.kv_heads, case.dim)
        self.v = normal(case.batch, case.tokens, case.kv_heads, case.dim)

    @property
    def slopes(self) -> Array:
        """ALiBi slopes of a head count that is a power of two."""
        return (2.0 ** (-8.0 * np.arange(1, self.case.heads + 1) / self.case.heads)).astype(np.float32)

    @property
    def checked_rows(self) -> Sequence[int]:
        """Rows of the output [batch * queries] that are compared: all of a step, a sample of a prompt."""
        rows = self.case.tokens if self.case.kind == "rope" else self.case.batch * self.case.queries
        return sorted({round(i * (rows - 1) / 15) for i in range(16)}) if rows > 16 else range(rows)

    @property
    def tolerance(self) -> float:
        return (ROPE_TOLERANCE if self.case.kind == "rope" else TOLERANCE)[self.case.type]

    def expected(self) -> Array | None:
        """[checked rows, heads, dim] in fp64."""
        if self.case.kind == "append":
            return None
        if self.case.kind == "rope":
            return np.stack([self._rotated(row) for row in self.checked_rows])
        return np.stack([self._attended(row) for row in self.checked_rows])

    def _rotated(self, row: int) -> Array:
        half = self.case.dim // 2
        angle = self.positions[row] * ROPE_THETA ** (-np.arange(half) / half)
        x, y = np.split(self.x[row].astype(np.float64), 2, axis=-1)
        return np.concatenate((x * np.cos(angle) - y * np.sin(angle), y * np.cos(angle) + x * np.sin(angle)), axis=-1)

    def _attended(self, row: int) -> Array:
        case = self.case
        sequence, query = divmod(row, case.queries)
        seen = case.tokens - case.queries + query + 1
        group = case.heads // case.kv_heads
        out = np.empty((case.heads, case.dim))
        for kv_head in range(case.kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            k = self.k[sequence, :seen, kv_head].astype(np.float64)
            scores = self.q[sequence, query, heads].astype(np.float64) @ k.T / np.sqrt(case.dim)
            if case.kind == "alibi":
                scores -= self.slopes[heads, None].astype(np.float64) * (seen - 1 - np.arange(seen))
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[heads] = weights @ self.v[sequence, :seen, kv_head].astype(np.float64) / weights.sum(axis=-1, keepdims=True)
        return out
