"""ONNX Runtime's GroupQueryAttention and RotaryEmbedding on the CPU provider. Past and present keys share one buffer, so a step appends its own
token in place: that is part of the time."""
from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ..cases import Case
from ..tensors import ROPE_THETA, Tensors, copies, pair_copies, to_bits, to_float
from ..work import Refused, Work, attention_amount

DOMAIN = "com.microsoft"
CONTENT = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "int8": TensorProto.INT8, "int4": TensorProto.UINT8}
ELEMENT = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8, "int4": np.uint8}


def model(operator: str, inputs: list[tuple[str, int, list]], outputs: list[tuple[str, int, list]], slots: list[str], **attributes) -> bytes:
    """A model of one node; `slots` are the node's inputs in order, "" where one is left out."""
    node = helper.make_node(operator, slots, [name for name, *_ in outputs], domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], operator, [helper.make_tensor_value_info(*i) for i in inputs],
                              [helper.make_tensor_value_info(*o) for o in outputs])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def quantised(x: np.ndarray, element_type: str) -> tuple[np.ndarray, np.ndarray]:
    """x [batch, heads, tokens, dim] and scales [heads * dim]: symmetric, one scale a channel; int4 keeps two neighbours in a byte, plus 8."""
    top = 127 if element_type == "int8" else 7
    scale = np.abs(x).max(axis=(0, 2), keepdims=True) / top
    codes = np.clip(np.rint(x / scale), -top, top).astype(np.int8)
    if element_type == "int4":
        shifted = (codes + 8).astype(np.uint8)
        codes = shifted[..., 0::2] | (shifted[..., 1::2] << 4)
    return np.ascontiguousarray(codes), scale.reshape(-1).astype(np.float32)


class Peer:
    def __init__(self, threads: int) -> None:
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": onnxruntime.__version__}

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        if case.type not in CONTENT:
            raise Refused(f"the CPU provider has no {case.type}")
        if case.kind == "append":
            raise Refused("appending is part of GroupQueryAttention")
        return self._rope(case, tensors) if case.kind == "rope" else self._attention(case, tensors)

    def _session(self, serialized: bytes) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(serialized, self._options, providers=["CPUExecutionProvider"])

    @staticmethod
    def _bind(binding, method: str, name: str, array: np.ndarray) -> None:
        getattr(binding, method)(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _attention(self, case: Case, tensors: Tensors) -> Work:
        narrow = case.type != case.query_type
        k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (tensors.k, tensors.v))
        scales: dict[str, np.ndarray] = {}
        if narrow:
            (k, scales["k_scale"]), (v, scales["v_scale"]) = quantised(k, case.type), quantised(v, case.type)
        else:
            k, v = to_bits(k, case.type), to_bits(v, case.type)
        fed = {
            "query": to_bits(tensors.q, case.query_type).reshape(case.batch, case.queries, -1),
            "key": to_bits(tensors.k[:, -case.queries:], case.query_type).reshape(case.batch, case.queries, -1),
            "value": to_bits(tensors.v[:, -case.queries:], case.query_type).reshape(case.batch, case.queries, -1),
            "seqlens_k": np.full(case.batch, case.tokens - 1, dtype=np.int32),
            "total_sequence_length": np.array([case.tokens], dtype=np.int32),
            **scales,
        }
        if case.kind == "alibi":
            distance = np.arange(case.tokens - 1, -1, -1, dtype=np.float32)
            fed["attention_bias"] = to_bits(-tensors.slopes[None, :, None, None] * distance, case.type)
        session = self._session(self._attention_model(case, fed, k.shape[-1], narrow))
        out = np.zeros_like(fed["query"])
        buffers = pair_copies(k, v) if case.kind != "prefill" else [(k, v)]
        bindings = [self._attention_binding(session, fed, keys, values, out) for keys, values in buffers]

        def call(i: int) -> None:
            session.run_with_iobinding(bindings[i % len(bindings)])

        return Work(call, attention_amount(case, k.nbytes + v.nbytes), lambda: to_float(out).reshape(-1, case.heads, case.dim),
                    "with append" + (", a scale per channel" if narrow else ""))

    def _attention_model(self, case: Case, fed: dict[str, np.ndarray], stored_dim: int, narrow: bool) -> bytes:
        content, stored = CONTENT[case.query_type], CONTENT[case.type]
        types = {"seqlens_k": TensorProto.INT32, "total_sequence_length": TensorProto.INT32}
        types |= {"k_scale": TensorProto.FLOAT, "v_scale": TensorProto.FLOAT}
        cache_shape = ["batch", case.kv_heads, "room", stored_dim]
        inputs = [(name, types.get(name, content), list(array.shape)) for name, array in fed.items()]
        inputs += [("past_key", stored, cache_shape), ("past_value", stored, cache_shape)]
        outputs = [("output", content, ["batch", "queries", case.heads * case.dim]), ("present_key", stored, cache_shape),
                   ("present_value", stored, cache_shape)]
        slots = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "", "", "", "attention_bias", "", "k_scale",
                 "v_scale"]
        slots = [name if name in fed or name.startswith("past_") else "" for name in slots]
        quantisation = {}
        if narrow:
            quantisation = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8 if case.type == "int8" else 4}
        while not slots[-1]:
            slots.pop()
        return model("GroupQueryAttention", inputs, outputs, slots, num_heads=case.heads, kv_num_heads=case.kv_heads, **quantisation)

    def _attention_binding(self, session, fed: dict[str, np.ndarray], k: np.ndarray, v: np.ndarray, out: np.ndarray):
        binding = session.io_binding()
        for name, array in (*fed.items(), ("past_key", k), ("past_value", v)):
            self._bind(binding, "bind_input", name, array)
        for name, array in (("output", out), ("present_key", k), ("present_value", v)):
            self._bind(binding, "bind_output", name, array)
        binding.kept = (fed, k, v, out)  # bindings hold addresses only
        return binding

    def _rope(self, case: Case, tensors: Tensors) -> Work:
        if case.type not in ("fp32", "fp16"):
            raise Refused(f"the CPU provider has no {case.type}")
        half = case.dim // 2
        angle = np.arange(tensors.positions[-1] + 1)[:, None] * ROPE_THETA ** (-np.arange(half) / half)
        x = to_bits(tensors.x, case.type).reshape(1, case.tokens, -1)
        cos, sin = (f(angle).astype(x.dtype) for f in (np.cos, np.sin))
        fed = {"position_ids": tensors.positions.reshape(1, -1), "cos_cache": cos, "sin_cache": sin}
        content = CONTENT[case.type]
        inputs = [("input", content, list(x.shape))]
        inputs += [(name, TensorProto.INT64 if name == "position_ids" else content, list(array.shape)) for name, array in fed.items()]
        session = self._session(model("RotaryEmbedding", inputs, [("output", content, list(x.shape))], ["input", *fed], num_heads=case.heads,
                                      rotary_embedding_dim=0))
        out = np.zeros_like(x)
        bindings = []
        for buffer in copies(x) if case.tokens > 1 else [x]:
            binding = session.io_binding()
            for name, array in (("input", buffer), *fed.items()):
                self._bind(binding, "bind_input", name, array)
            self._bind(binding, "bind_output", "output", out)
            binding.kept = (buffer, fed)
            bindings.append(binding)

        def call(i: int) -> None:
            session.run_with_iobinding(bindings[i % len(bindings)])

        return Work(call, 2e-9 * x.nbytes, lambda: to_float(out).reshape(case.tokens, case.heads, case.dim), "out of place")
