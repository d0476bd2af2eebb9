"""Torch tensors over numpy memory."""
from __future__ import annotations

import numpy as np
import torch

from ..tensors import to_bits

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def wrap(bits: np.ndarray) -> torch.Tensor:
    """The same memory; uint16 is bf16."""
    if bits.dtype == np.uint16:
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(bits)


def tensor(values: np.ndarray, element_type: str) -> torch.Tensor:
    return wrap(np.ascontiguousarray(to_bits(values, element_type)))


def values(result: torch.Tensor) -> np.ndarray:
    return result.detach().float().numpy()


def head_major(array: np.ndarray) -> np.ndarray:
    """[batch, tokens, heads, dim] as [batch, heads, tokens, dim]."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3))


def start(threads: int) -> dict[str, str]:
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return {"torch": torch.__version__}
