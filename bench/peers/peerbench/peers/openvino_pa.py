"""OpenVINO's PagedAttention: a model of one PagedAttentionExtension on the CPU plugin. A step appends its own token: that is part of the time."""
from __future__ import annotations

import numpy as np
import openvino
from openvino import opset15
from openvino._pyopenvino.op import _PagedAttentionExtension

from ..cases import Case
from ..tensors import Tensors, pair_copies
from ..work import Refused, Work, attention_amount

BLOCK = 32
PRECISION = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "u8", "int4": "u4"}
METADATA = {"past_lens": [-1], "subsequence_begins": [-1], "block_indices": [-1], "block_indices_begins": [-1], "max_context_len": []}


def parameter(name: str, element_type, shape: list[int]):
    made = opset15.parameter(shape, element_type, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def constant(values, element_type=np.int32):
    return opset15.constant(np.array(values, dtype=element_type))


def attention_model(case: Case, slopes: np.ndarray) -> openvino.Model:
    data = [parameter("query", np.float32, [-1, case.heads * case.dim])]
    data += [parameter(name, np.float32, [-1, case.kv_heads * case.dim]) for name in ("key", "value")]
    data += [parameter(name, openvino.Type.dynamic, [-1] * 4) for name in ("key_cache.0", "value_cache.0")]
    steering = {name: parameter(name, np.int32, shape) for name, shape in METADATA.items()}
    zero, none, no_floats = constant(0), constant([]), constant([], np.float32)
    inputs = [
        *data, *list(steering.values())[:4],
        constant(case.dim ** -0.5, np.float32), zero, constant(slopes, np.float32), steering["max_context_len"],  # scale, window, ALiBi
        none, none, none, no_floats,  # score aggregation, cache rotation
        no_floats, zero, zero,  # xattention
        constant(np.zeros((0, 0, 0, 0)), np.float32),  # sinks
        zero, none, none, none,  # adaptive RKV
        none, constant([], np.uint8), none,  # token types, query-to-query bias
    ]
    attention = _PagedAttentionExtension([node.output(0) for node in inputs])
    for side in "kv":
        attention.get_rt_info()[f"{side}_head_size"] = case.dim
        attention.get_rt_info()[f"num_{side}_heads"] = case.kv_heads
    return openvino.Model([attention.output(0)], [*data, *steering.values()], "paged_attention")


class Peer:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._core = openvino.Core()

    def versions(self) -> dict[str, str]:
        return {"openvino": openvino.__version__}

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.kind not in ("decode", "alibi", "prefill"):
            raise Refused("appending is part of PagedAttention" if case.kind == "append" else "no rope of its own")
        if case.type not in PRECISION:
            raise Refused(f"no {case.type} cache")
        inference = "bf16" if case.type == "bf16" else "f32"
        model = attention_model(case, tensors.slopes if case.kind == "alibi" else np.zeros(0))
        try:
            compiled = self._core.compile_model(model, "CPU", {"KV_CACHE_PRECISION": PRECISION[case.type], "INFERENCE_PRECISION_HINT": inference,
                                                               "INFERENCE_NUM_THREADS": self._threads, "ENABLE_CPU_PINNING": False})
        except RuntimeError as error:
            raise Refused(f"the plugin says: {str(error).strip().splitlines()[-1]}") from error
        return self._attention(case, tensors, compiled)

    @staticmethod
    def _steps(case: Case, q_len: int, past: int, sequences: int, blocks: np.ndarray) -> dict[str, np.ndarray]:
        """The steering inputs of `sequences` sequences of equal length."""
        counts = np.arange(sequences + 1, dtype=np.int32)
        return {
            "past_lens": np.full(sequences, past, dtype=np.int32),
            "subsequence_begins": counts * q_len,
            "block_indices": blocks,
            "block_indices_begins": counts * np.int32(blocks.size // sequences),
            "max_context_len": np.array(past + q_len, dtype=np.int32),
        }

    def _attention(self, case: Case, tensors: Tensors, compiled: openvino.CompiledModel) -> Work:
        blocks = np.random.default_rng(3).permutation(case.batch * case.tokens // BLOCK).astype(np.int32)
        caches = [self._cache(compiled, name, blocks.size) for name in ("key_cache.0", "value_cache.0")]
        rows = {"query": tensors.q.reshape(-1, case.heads * case.dim)}
        rows |= {name: x.reshape(-1, case.kv_heads * case.dim) for name, x in (("key", tensors.k), ("value", tensors.v))}
        # every block is written as a prompt of its own: the cache is the same, attention over it is not needed yet
        fill = {"query": np.zeros((len(rows["key"]), case.heads * case.dim), np.float32), "key": rows["key"], "value": rows["value"]}
        self._request(compiled, fill | self._steps(case, BLOCK, 0, blocks.size, blocks), caches).infer()

        def last(x: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(x[:, -case.queries:]).reshape(-1, case.kv_heads * case.dim)

        step = {"query": rows["query"], "key": last(tensors.k), "value": last(tensors.v)}
        step |= self._steps(case, case.queries, case.tokens - case.queries, case.batch, blocks)
        buffers = pair_copies(*caches) if case.kind != "prefill" else [tuple(caches)]
        requests = [self._request(compiled, step, pair) for pair in buffers]

        def call(i: int) -> None:
            request = requests[i % len(requests)]
            request.start_async()
            request.wait()

        return Work(call, attention_amount(case, sum(c.nbytes for c in caches)),
                    lambda: requests[0].get_output_tensor(0).data.astype(np.float32).reshape(-1, case.heads, case.dim), "with append")

    @staticmethod
    def _cache(compiled: openvino.CompiledModel, name: str, blocks: int) -> np.ndarray:
        """Zeroed bytes of one cache, in the shape that the plugin wants (scales are part of the rows)."""
        port = compiled.input(name)
        shape = [blocks, *(dimension.get_length() for dimension in list(port.partial_shape)[1:])]
        return np.zeros((blocks, int(np.prod(shape[1:])) * port.element_type.bitwidth // 8), dtype=np.uint8)

    @staticmethod
    def _request(compiled: openvino.CompiledModel, inputs: dict[str, np.ndarray], caches) -> openvino.InferRequest:
        request = compiled.create_infer_request()
        for name, array in inputs.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        for name, bytes_ in zip(("key_cache.0", "value_cache.0"), caches):
            port = compiled.input(name)
            shape = [len(bytes_), *(dimension.get_length() for dimension in list(port.partial_shape)[1:])]
            request.set_tensor(name, openvino.Tensor(bytes_, openvino.Shape(shape), port.element_type))
        request.kept = (inputs, caches)  # tensors hold addresses only
        return request
