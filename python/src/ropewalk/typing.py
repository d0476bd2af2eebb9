"""Types of arguments."""

from typing import Any, Protocol


class Array(Protocol):
    """An array in the host's memory: of numpy, torch, or another exporter of DLPack or the buffer protocol; `ropewalk.bf16` for bf16 in numpy."""

    def __dlpack__(self, **kwargs: Any) -> Any: ...
