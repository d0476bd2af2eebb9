"""What an implementation gives for a case: something to call and something to check."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .cases import Case
from .tensors import Tensors


class Refused(Exception):
    """The implementation cannot run the case; the text is the reason that the table shows."""


@dataclass
class Work:
    call: Callable[[int], object]  # call(i) works on buffer i modulo the number of buffers
    amount: float = 0.0  # of the case's unit, in 10^9, that one call processes; 0 where only the time counts
    output: Callable[[], np.ndarray] | None = None  # after call(0): [rows, heads, dim]
    note: str = ""


class Implementation(Protocol):
    def versions(self) -> dict[str, str]: ...

    def prepare(self, case: Case, tensors: Tensors) -> Work: ...


def attention_amount(case: Case, kv_bytes: float) -> float:
    return (case.flops if case.kind == "prefill" else kv_bytes) * 1e-9
