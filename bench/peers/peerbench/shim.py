"""ropewalk and the roofs, called in this process through libropewalk_peers.so."""
from __future__ import annotations

import ctypes
import itertools
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np

from .cases import DTYPES, Case
from .tensors import ROPE_THETA, Tensors, buffer_count, to_bits, to_float
from .work import Refused, Work, attention_amount

HUGE_PAGE = 2 << 20
APPEND_STRIDE = 67  # appended tokens lie this far apart, so that no call finds the lines of an earlier one


class Pool(Structure):
    _fields_ = [(name, c_int32) for name in ("k_type", "v_type", "kv_heads", "dim", "page_count")]


SIGNATURES = {
    "error": (c_char_p, []),
    "version": (c_char_p, []),
    "target": (c_char_p, []),
    "page_tokens": (c_int32, []),
    "threads": (c_int32, []),
    "open": (c_void_p, [c_int32]),
    "close": (None, [c_void_p]),
    "pool_bytes": (c_int64, [POINTER(Pool)]),
    "append": (c_int32, [c_void_p, POINTER(Pool), c_void_p, c_void_p, c_int64, c_int32, c_void_p, c_void_p]),
    "plan": (c_void_p, [c_void_p, POINTER(Pool), c_int32, c_int32, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]),
    "plan_free": (None, [c_void_p]),
    "plan_kv_bytes": (c_int64, [c_void_p]),
    "attend": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "rope": (c_void_p, [c_void_p, c_int32, c_int32, c_int32, c_double, c_void_p, c_int64]),
    "rope_free": (None, [c_void_p]),
    "rotate": (c_int32, [c_void_p, c_void_p]),
    "read_roof": (c_double, [c_void_p, c_void_p, c_int64]),
    "scale_roof": (c_double, [c_void_p, c_void_p, c_int64]),
    "arithmetic_roof": (c_double, [c_void_p, c_int32]),
}


class Library:
    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(loaded, f"ropewalk_peers_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def require(self, accepted: bool) -> None:
        if not accepted:
            raise Refused(self.error().decode())


def aligned(size: int) -> np.ndarray:
    """Bytes that begin at a huge page; numpy asks the system for huge ones."""
    raw = np.empty(size + HUGE_PAGE, dtype=np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    return raw[start:start + size]


class Ropewalk:
    """The Implementation of ropewalk, and the roofs of the machine, on `threads` threads."""

    def __init__(self, path: Path, threads: int) -> None:
        self.library = Library(path)
        self.session = self.library.open(threads)
        self.library.require(self.session is not None)
        self.buffers: list[np.ndarray] = []  # of the case that was prepared last
        self.kept: tuple[np.ndarray, ...] = ()  # what only C holds a pointer to
        self.plan: int | None = None

    def versions(self) -> dict[str, str]:
        return {"ropewalk": f"{self.library.version().decode()} ({self.library.target().decode()})"}

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        self.buffers = []
        self.library.plan_free(self.plan)
        self.plan = None
        return {"rope": self._rope, "append": self._append}.get(case.kind, self._attention)(case, tensors)

    def roof(self, case: Case, seconds: float) -> float | None:
        """What bounds the case, now, over memory that the case uses: GB/s or GFLOP/s, over about the time given."""
        if case.kind == "prefill":
            return self.library.arithmetic_roof(self.session, int(case.type == "bf16"))
        if case.kind == "append" or not self.buffers or (case.kind == "rope" and case.tokens == 1):
            return None  # these are bounded by the call
        gigabytes, spent = 0.0, 0.0
        for buffer in itertools.cycle(self.buffers):
            if case.kind == "rope":
                amount, rate = 2e-9 * buffer.nbytes, self.library.scale_roof(self.session, buffer.ctypes.data, buffer.nbytes // 4)
            else:
                amount, rate = 1e-9 * buffer.nbytes, self.library.read_roof(self.session, buffer.ctypes.data, buffer.nbytes)
            gigabytes, spent = gigabytes + amount, spent + amount / rate
            if spent >= seconds:
                return gigabytes / spent

    def _pool(self, case: Case) -> tuple[Pool, np.ndarray]:
        """The pool of a case and its first buffer."""
        pages = case.batch * -(-case.tokens // self.library.page_tokens())
        pool = Pool(DTYPES[case.type], DTYPES[case.type], case.kv_heads, case.dim, pages)
        size = self.library.pool_bytes(pool)
        self.library.require(size >= 0)
        first = aligned(size)
        first.fill(0)
        return pool, first

    def _copies(self, first: np.ndarray) -> None:
        self.buffers = [first]
        for _ in range(buffer_count(first.nbytes) - 1):
            self.buffers.append(aligned(first.nbytes))
            self.buffers[-1][:] = first

    def _fill(self, case: Case, tensors: Tensors, pool: Pool, first: np.ndarray, page_ids: np.ndarray) -> None:
        """Appends all keys and values of the case; page_ids [batch, pages of a sequence]."""
        page_tokens = self.library.page_tokens()
        tokens = np.arange(case.tokens, dtype=np.int64)
        slots = np.ascontiguousarray(page_ids[:, tokens // page_tokens], dtype=np.int64) * page_tokens + tokens % page_tokens
        k, v = (to_bits(x, case.query_type) for x in (tensors.k, tensors.v))
        self.library.require(not self.library.append(self.session, pool, first.ctypes.data, slots.ctypes.data, slots.size,
                                                     DTYPES[case.query_type], k.ctypes.data, v.ctypes.data))

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        pool, first = self._pool(case)
        page_ids = np.random.default_rng(3).permutation(pool.page_count).astype(np.int32).reshape(case.batch, -1)
        self._fill(case, tensors, pool, first, page_ids)
        q = to_bits(tensors.q, case.query_type)
        out = np.zeros_like(q)
        sequences = np.arange(case.batch + 1, dtype=np.int64)
        q_indptr, page_indptr = sequences * case.queries, sequences * page_ids.shape[1]
        kv_lens = np.full(case.batch, case.tokens, dtype=np.int64)
        slopes = tensors.slopes if case.kind == "alibi" else None
        self.plan = plan = self.library.plan(
            self.session, pool, case.heads, DTYPES[case.query_type], slopes.ctypes.data if slopes is not None else None, case.batch,
            q_indptr.ctypes.data, kv_lens.ctypes.data, page_indptr.ctypes.data, page_ids.ctypes.data)
        self.library.require(plan is not None)
        if case.kind == "prefill":
            self.buffers = [first]
        else:
            self._copies(first)
        bases = [b.ctypes.data for b in self.buffers]
        self.kept = (q, out)
        attend, q_data, out_data = self.library.attend, q.ctypes.data, out.ctypes.data

        def call(i: int) -> None:
            if attend(plan, q_data, bases[i % len(bases)], out_data):
                raise Refused(self.library.error().decode())

        amount = attention_amount(case, self.library.plan_kv_bytes(plan))
        return Work(call, amount, lambda: to_float(out).reshape(-1, case.heads, case.dim))

    def _append(self, case: Case, tensors: Tensors) -> Work:
        pool, first = self._pool(case)
        self._copies(first)
        bases = [b.ctypes.data for b in self.buffers]
        k, v = (to_bits(x[0, -1], case.query_type) for x in (tensors.k, tensors.v))
        slots = np.arange(case.tokens, dtype=np.int64)
        append, element_type = self.library.append, DTYPES[case.query_type]
        self.kept = (k, v, slots)
        k_data, v_data, slot_data = k.ctypes.data, v.ctypes.data, slots.ctypes.data

        def call(i: int) -> None:
            slot = i * APPEND_STRIDE % case.tokens
            if append(self.session, pool, bases[i % len(bases)], slot_data + 8 * slot, 1, element_type, k_data, v_data):
                raise Refused(self.library.error().decode())

        return Work(call)

    def _rope(self, case: Case, tensors: Tensors) -> Work:
        x = to_bits(tensors.x, case.type)
        rotation = self.library.rope(self.session, DTYPES[case.type], case.heads, case.dim, ROPE_THETA, tensors.positions.ctypes.data, case.tokens)
        self.library.require(rotation is not None)
        if case.tokens == 1:
            self.buffers = [x.copy()]
        else:
            first = aligned(x.nbytes)
            first[:] = x.reshape(-1).view(np.uint8)
            self._copies(first)
        bases = [b.ctypes.data for b in self.buffers]

        def call(i: int) -> None:
            if self.library.rotate(rotation, bases[i % len(bases)]):
                raise Refused(self.library.error().decode())

        return Work(call, 2e-9 * x.nbytes, lambda: to_float(self.buffers[0].view(x.dtype)).reshape(x.shape), "in place")
