"""ropewalk: position encodings, blocked attention and a paged KV cache on CPUs.

Arrays are numpy arrays, torch tensors or anything else that speaks DLPack or the buffer protocol. They are never copied; a call releases the GIL
while it works. A call that is refused raises a subclass of `Error`, or TypeError or ValueError for an argument of the wrong kind, and changes
nothing.
"""

from . import typing
from ._core import *  # noqa: F403
from ._core import version as _version

__version__ = _version()
