"""ggml's CPU backend (built from the source package of llama-cpp-python): flash_attn_ext over a token-major cache, as llama.cpp lays it out,
set_rows, rope_ext_inplace. One graph a buffer, built and planned before the clock starts, one thread pool for all."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np

from ..cases import Case
from ..shim import APPEND_STRIDE
from ..tensors import ROPE_THETA, Tensors, copies, pair_copies
from ..work import Refused, Work, attention_amount

LIBRARIES = "ROPEWALK_PEERS_GGML"  # environment variable: the folder that run.py built
F32, F16, I64, I32 = 0, 1, 27, 26
TYPES = {"fp32": F32, "fp16": F16, "bf16": 30, "int8": 8, "int4": 2}  # Q8_0, Q4_0
NEOX = 2
MAX_BIAS = 8.0
CONTEXT_BYTES = 1 << 18  # of a graph: descriptions only


class Tensor(Structure):
    """struct ggml_tensor, up to `data`."""
    _fields_ = [("type", c_int), ("buffer", c_void_p), ("ne", c_int64 * 4), ("nb", c_size_t * 4), ("op", c_int), ("op_params", c_int32 * 16),
                ("flags", c_int32), ("src", c_void_p * 10), ("view_src", c_void_p), ("view_offs", c_size_t), ("data", c_void_p)]


class InitParams(Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Plan(Structure):
    _fields_ = [("work_size", c_size_t), ("work_data", c_void_p), ("n_threads", c_int), ("threadpool", c_void_p), ("abort_callback", c_void_p),
                ("abort_callback_data", c_void_p), ("use_ref", c_bool)]


class ThreadpoolParams(Structure):
    _fields_ = [("cpumask", c_bool * 512), ("n_threads", c_int), ("prio", c_int), ("poll", c_uint32), ("strict_cpu", c_bool), ("paused", c_bool)]


TENSOR = POINTER(Tensor)
SIGNATURES = {
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_version": (c_char_p, []),
    "ggml_commit": (c_char_p, []),
    "ggml_new_tensor_4d": (TENSOR, [c_void_p, c_int, c_int64, c_int64, c_int64, c_int64]),
    "ggml_row_size": (c_size_t, [c_int, c_int64]),
    "ggml_flash_attn_ext": (TENSOR, [c_void_p, TENSOR, TENSOR, TENSOR, TENSOR, c_float, c_float, c_float]),
    "ggml_set_rows": (TENSOR, [c_void_p, TENSOR, TENSOR, TENSOR]),
    "ggml_rope_ext_inplace": (TENSOR, [c_void_p, TENSOR, TENSOR, TENSOR, c_int, c_int, c_int, *[c_float] * 6]),
    "ggml_quantize_chunk": (c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, TENSOR]),
    "ggml_threadpool_params_default": (ThreadpoolParams, [c_int]),
    "ggml_threadpool_new": (c_void_p, [POINTER(ThreadpoolParams)]),
    "ggml_graph_plan": (Plan, [c_void_p, c_int, c_void_p]),
    "ggml_graph_compute": (c_int, [c_void_p, POINTER(Plan)]),
    "ggml_cpu_init": (None, []),
}


class Library:
    def __init__(self, folder: Path) -> None:
        loaded = [ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL) for name in ("ggml-base", "ggml-cpu")]
        for name, (result, arguments) in SIGNATURES.items():
            function = next(getattr(library, name) for library in loaded if hasattr(library, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)


class Graph:
    """Tensors over numpy memory and one node to compute."""

    def __init__(self, library: Library, threads: int, pool: int) -> None:
        self._library, self._threads, self._pool = library, threads, pool
        self._context = library.init(InitParams(CONTEXT_BYTES, None, True))
        self.kept: list[np.ndarray] = []

    def tensor(self, element_type: int, shape: tuple[int, int, int, int], data: np.ndarray, order: tuple[int, int, int] = (1, 2, 3)):
        """shape as ggml counts, fastest first; `order` is how dimensions 1 to 3 follow each other in memory."""
        made = self._library.new_tensor_4d(self._context, element_type, *shape)
        stride = self._library.row_size(element_type, shape[0])
        for dimension in order:
            made.contents.nb[dimension] = stride
            stride *= shape[dimension]
        made.contents.data = data.ctypes.data
        self.kept.append(data)
        return made

    def finish(self, node, out: np.ndarray | None) -> None:
        if out is not None:
            node.contents.data = out.ctypes.data
            self.kept.append(out)
        self._graph = self._library.new_graph(self._context)
        self._library.build_forward_expand(self._graph, node)
        self._plan = self._library.graph_plan(self._graph, self._threads, self._pool)
        work = np.empty(max(1, self._plan.work_size), dtype=np.uint8)
        self._plan.work_data = work.ctypes.data
        self.kept.append(work)

    def node(self, operation: str, *arguments):
        return getattr(self._library, operation)(self._context, *arguments)

    def compute(self) -> None:
        if self._library.graph_compute(self._graph, byref(self._plan)) != 0:
            raise Refused("ggml_graph_compute failed")


class Peer:
    def __init__(self, threads: int) -> None:
        self._library = Library(Path(os.environ[LIBRARIES]))
        self._library.cpu_init()
        self._threads = threads
        parameters = self._library.threadpool_params_default(threads)
        self._pool = self._library.threadpool_new(byref(parameters))

    def versions(self) -> dict[str, str]:
        return {"ggml": f"{self._library.version().decode()} ({self._library.commit().decode()})"}

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.type not in TYPES:
            raise Refused(f"no {case.type} cache")
        return {"rope": self._rope, "append": self._append}.get(case.kind, self._attention)(case, tensors)

    def _graph(self) -> Graph:
        return Graph(self._library, self._threads, self._pool)

    def _stored(self, x: np.ndarray, case: Case) -> np.ndarray:
        """x [batch, tokens, kv_heads, dim] as bytes [batch, tokens, kv_heads, row]."""
        row = self._library.row_size(TYPES[case.type], case.dim)
        source = np.ascontiguousarray(x, dtype=np.float32)
        stored = np.zeros((*x.shape[:-1], row), dtype=np.uint8)
        if case.type == "fp32":
            return source.view(np.uint8)
        self._library.quantize_chunk(TYPES[case.type], source.ctypes.data, stored.ctypes.data, 0, source.size // case.dim, case.dim, None)
        return stored

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        k, v = self._stored(tensors.k, case), self._stored(tensors.v, case)
        mask = self._mask(case)
        out = np.zeros((case.batch, case.queries, case.heads, case.dim), dtype=np.float32)
        graphs = [self._attention_graph(case, tensors.q, pair, mask, out) for pair in (pair_copies(k, v) if case.kind != "prefill" else [(k, v)])]
        return Work(lambda i: graphs[i % len(graphs)].compute(), attention_amount(case, k.nbytes + v.nbytes),
                    lambda: out.reshape(-1, case.heads, case.dim), {"int8": "Q8_0", "int4": "Q4_0"}.get(case.type, ""))

    @staticmethod
    def _mask(case: Case) -> np.ndarray | None:
        """[queries, tokens] added to the scores; a single query without ALiBi needs none."""
        key = np.arange(case.tokens)
        if case.kind == "alibi":
            return (key - (case.tokens - 1.0))[None].astype(np.float16)
        if case.kind == "prefill":
            return np.where(key[None, :] <= key[:, None], 0.0, -np.inf).astype(np.float16)
        return None

    def _attention_graph(self, case: Case, q: np.ndarray, pair: tuple[np.ndarray, np.ndarray], mask: np.ndarray | None, out: np.ndarray) -> Graph:
        graph = self._graph()
        by_token = (2, 1, 3)  # memory: dim, head, token
        query = graph.tensor(F32, (case.dim, case.queries, case.heads, case.batch), q, by_token)
        shape = (case.dim, case.tokens, case.kv_heads, case.batch)
        keys, values = (graph.tensor(TYPES[case.type], shape, part, by_token) for part in pair)
        bias = graph.tensor(F16, (case.tokens, len(mask), 1, 1), mask) if mask is not None else None
        node = graph.node("flash_attn_ext", query, keys, values, bias, case.dim ** -0.5, MAX_BIAS if case.kind == "alibi" else 0.0, 0.0)
        graph.finish(node, out)
        return graph

    def _append(self, case: Case, tensors: Tensors) -> Work:
        row = case.kv_heads * case.dim
        new = [np.ascontiguousarray(x[0, -1].reshape(-1)) for x in (tensors.k, tensors.v)]
        slot = np.zeros(1, dtype=np.int64)
        graphs = []
        for pair in pair_copies(self._stored(tensors.k, case), self._stored(tensors.v, case)):
            graphs.append([])
            for cache, values in zip(pair, new):
                graph = self._graph()
                target = graph.tensor(TYPES[case.type], (row, case.tokens, 1, 1), cache)
                node = graph.node("set_rows", target, graph.tensor(F32, (row, 1, 1, 1), values), graph.tensor(I64, (1, 1, 1, 1), slot))
                graph.finish(node, None)
                graphs[-1].append(graph)

        def call(i: int) -> None:
            slot[0] = i * APPEND_STRIDE % case.tokens
            for graph in graphs[i % len(graphs)]:
                graph.compute()

        return Work(call, note="set_rows, a graph each for K and V")

    def _rope(self, case: Case, tensors: Tensors) -> Work:
        if case.type != "fp32":
            raise Refused(f"rope_ext has no {case.type}")
        positions = tensors.positions.astype(np.int32)
        graphs = []
        for x in copies(tensors.x) if case.tokens > 1 else [tensors.x.copy()]:
            graph = self._graph()
            vectors = graph.tensor(F32, (case.dim, case.heads, case.tokens, 1), x)
            where = graph.tensor(I32, (case.tokens, 1, 1, 1), positions)
            node = graph.node("rope_ext_inplace", vectors, where, None, case.dim, NEOX, 0, ROPE_THETA, 1.0, 0.0, 1.0, 32.0, 1.0)
            graph.finish(node, None)
            graphs.append(graph)
        first = graphs[0].kept[0]
        return Work(lambda i: graphs[i % len(graphs)].compute(), 2e-9 * first.nbytes, lambda: first, "in place")
