"""The attention backend: kernels of ropewalk over vLLM's own blocks.

A block of vLLM holds block_size tokens of one layer, head by head; of a head it has as many bytes as a record of ropewalk (kv_pages.hpp), so a
record lies in their place. vLLM copies, zeroes, shares and frees whole blocks and never looks inside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import torch
import vllm

from .. import _core

TESTED = ("0.32.0",)

try:
    from vllm.config import get_current_vllm_config, get_layers_from_vllm_config
    from vllm.logger import init_logger
    from vllm.model_executor.layers.attention import Attention
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
    from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType
    from vllm.v1.kv_cache_interface import KVCacheLayout

    AttentionBackend.customize_spec  # noqa: B018
except (ImportError, AttributeError) as error:
    raise ImportError(f"ropewalk: vLLM {vllm.__version__} lacks an interface that its backend needs ({error}); tested: {TESTED}") from error

logger = init_logger(__name__)
if vllm.__version__.split("+")[0] not in TESTED:
    logger.warning("ropewalk: vLLM %s is not one of the versions that its backend is tested with: %s", vllm.__version__, ", ".join(TESTED))

_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BLOCK_SIZES = [16, 32, 64, 128, 256]


def _preset(dtype: torch.dtype) -> str:
    """Types of K and V in the pages, a name of KvLayout.preset; dtype is what vLLM would store."""
    name = os.environ.get("ROPEWALK_VLLM_KV") or _TYPES[dtype]
    try:
        _core.KvLayout.preset(name, kv_heads=1, k_dim=32)
    except ValueError as error:
        raise ValueError(f"ROPEWALK_VLLM_KV: {error}") from None
    return name


class RopewalkBackend(AttentionBackend):
    forward_includes_kv_cache_update = False
    supported_dtypes = list(_TYPES)
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return RopewalkImpl

    @staticmethod
    def get_builder_cls():
        return RopewalkBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return BLOCK_SIZES

    @classmethod
    def supported_kv_cache_layouts(cls):
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def customize_spec(cls, spec):
        """Blocks as large as ropewalk's records: smaller where they are quantised, larger where a head's width is no multiple of 16."""
        layout = _core.KvLayout.preset(_preset(spec.dtype), kv_heads=1, k_dim=spec.head_size, v_dim=spec.head_size_v, page_tokens=16)
        return replace(spec, state_content_bytes=layout.token_bytes)


class RefusedLatentAttention(AttentionBackend):
    """In place of vLLM's backends of multi-head latent attention where ropewalk is to run all models."""

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        raise NotImplementedError("ROPEWALK_VLLM=override: use_mla (multi-head latent attention) is not supported; unset ROPEWALK_VLLM")

    get_builder_cls = get_impl_cls


@dataclass
class RopewalkMetadata:
    plans: list[_core.AttentionPlan]  # by RopewalkImpl.kind
    tokens: int  # rows of q; padding may follow


class RopewalkBuilder(AttentionMetadataBuilder[RopewalkMetadata]):
    """Plans a step: once for all layers that differ in nothing but their weights."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if getattr(kv_cache_spec, "non_causal", False):
            raise NotImplementedError("ropewalk: non_causal layers are not supported")
        self._layers = list(get_layers_from_vllm_config(vllm_config, Attention, layer_names).values())
        self._kinds = []

    def _bind(self):
        """Follows the layers to the memory of their blocks, which vLLM hands out after the builder is made."""
        for layer in self._layers:
            layer.impl.bind(layer)
        if all(layer.impl.kind is not None for layer in self._layers):
            return
        kinds = {}
        for layer in self._layers:
            layer.impl.kind = kinds.setdefault(layer.impl.key(), (len(kinds), layer.impl))[0]
        self._kinds = [(impl.problem(), impl.pages) for _, impl in kinds.values()]

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        m = common_attn_metadata
        if m.causal is not True:
            raise NotImplementedError("ropewalk: attention that is not causal is not supported")
        self._bind()
        kv_lens = m.seq_lens[: m.num_reqs].numpy().astype(np.int64)
        pages = -(-kv_lens // self.kv_cache_spec.block_size)
        table = m.block_table_tensor[: m.num_reqs, : pages.max(initial=0)].numpy()
        q_indptr = m.query_start_loc_cpu[: m.num_reqs + 1].numpy().astype(np.int64)
        batch = _core.AttentionBatch(
            q_indptr=q_indptr,
            kv_lens=kv_lens,
            page_indptr=np.concatenate(([0], np.cumsum(pages))),
            page_ids=table[np.arange(table.shape[1]) < pages[:, None]],
        )
        plans = []
        for problem, where in self._kinds:
            plans.append(_core.AttentionPlan())
            plans[-1].build(problem, batch, where.layout, where.count)
        return RopewalkMetadata(plans, int(q_indptr[-1]))


class RopewalkImpl(AttentionImpl[RopewalkMetadata]):
    """One layer."""

    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
        attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None, **extra,
    ):  # fmt: skip
        config = get_current_vllm_config()
        self._refuse(config, kv_cache_dtype, attn_type, extra)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else [float(slope) for slope in alibi_slopes]
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._type = _TYPES[config.model_config.dtype]
        self._preset = _preset(kv_cache_dtype_str_to_dtype(kv_cache_dtype, config.model_config))
        self._cache = self.pages = self.kind = None

    @staticmethod
    def _refuse(config, kv_cache_dtype, attn_type, extra):
        """What would change numbers, or memory, and nothing here implements."""
        model = config.model_config
        refused = {
            "attn_type": attn_type if attn_type != AttentionType.DECODER else None,
            "kv_cache_dtype": kv_cache_dtype if kv_cache_dtype not in RopewalkBackend.supported_kv_cache_dtypes else None,
            "dtype": model.dtype if model.dtype not in _TYPES else None,
            "is_mm_prefix_lm": model.is_mm_prefix_lm,
            "rswa_window": model.rswa_window,
            "use_non_causal": config.attention_config.use_non_causal,
            "kv_transfer_config": config.kv_transfer_config,
            **extra,
        }
        for key in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if (size := getattr(config.parallel_config, key)) != 1:
                refused[key] = size
        for key, value in refused.items():
            if value is not None and value is not False:
                raise NotImplementedError(f"ropewalk: {key} is {value}, which its backend does not support")

    def bind(self, layer) -> None:
        """Takes the layer's blocks as pages, if it does not have them already."""
        cache = layer.kv_cache
        if cache is self._cache:
            return
        blocks, heads, tokens, content = cache.shape
        size = cache.element_size()
        if cache.stride()[2:] != (content, 1):
            raise ValueError(f"ropewalk: kv_cache has strides {cache.stride()}; expected the tokens of a head behind each other (layout LBHNC)")
        width = {"kv_heads": heads, "k_dim": self.head_size, "v_dim": layer.head_size_v, "page_tokens": tokens}
        types = _core.KvLayout.preset(self._preset, **width)
        if types.record_bytes != tokens * content * size:
            raise ValueError(f"ropewalk: kv_cache has {tokens * content * size} bytes a block and head; expected {types.record_bytes}")
        layout = _core.KvLayout(
            **width, k_type=types.k_type, v_type=types.v_type, hadamard=types.hadamard, head_stride=cache.stride(1) * size,
            page_stride=cache.stride(0) * size,
        )  # fmt: skip
        memory = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage(), cache.storage_offset() * size, (blocks * cache.stride(0) * size,))
        self.pages = _core.KvPages(memory, layout, blocks)
        self._cache, self.kind = cache, None

    def key(self):
        """Layers of equal keys share a plan. It holds sinks, so that each layer that has some needs its own."""
        slopes = None if self.alibi_slopes is None else tuple(self.alibi_slopes)
        return (
            self.num_heads, self.num_kv_heads, self.head_size, self.scale, self.sliding_window, self.logits_soft_cap, slopes,
            None if self.sinks is None else id(self.sinks), self._cache.shape, self._cache.stride(), self._cache.dtype,
        )  # fmt: skip

    def problem(self):
        span = None if self.sliding_window is None else _core.AttentionSpan.sliding_window(self.sliding_window)
        return _core.AttentionProblem(
            heads=self.num_heads, kv_heads=self.num_kv_heads, k_dim=self.head_size, v_dim=self.pages.layout.v_dim, q_type=self._type,
            scale=self.scale, softcap=self.logits_soft_cap, span=span, alibi_slopes=self.alibi_slopes,
            sinks=None if self.sinks is None else self.sinks.detach().float().contiguous(),
        )  # fmt: skip

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        self.bind(layer)
        tokens = slot_mapping.shape[0]
        _core.kv_append(self.pages, slot_mapping, key[:tokens], value[:tokens])

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
    ):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("ropewalk: output_scale (quantised output) is not supported")
        if attn_metadata is not None:  # None in the profiling run
            tokens = attn_metadata.tokens
            attn_metadata.plans[self.kind].run(query[:tokens], self.pages, output[:tokens])
        return output
