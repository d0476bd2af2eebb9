"""Types of arguments."""

from typing import Any, Protocol


class Array(Protocol):
    """An array of the host's memory: numpy, torch, or another exporter of DLPack or of the buffer protocol; `ropewalk.bf16` for bf16 bits in numpy."""

    def __dlpack__(self, **kwargs: Any) -> Any: ...
