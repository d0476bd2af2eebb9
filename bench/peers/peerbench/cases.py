"""What is measured: a case is one operation at one shape and one element type."""
from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

# Element types by the numbers of ropewalk::dtype. The narrow ones are types of the cache; queries are fp32 there.
DTYPES = {"fp32": 0, "bf16": 1, "fp16": 2, "int8": 3, "int4": 4, "fp8": 5}
NARROW = ("int8", "int4", "fp8")


@dataclass(frozen=True)
class Case:
    kind: str  # decode, alibi, prefill, rope, append
    type: str  # of the cache (rope: of the vectors)
    batch: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.type}/b{self.batch}/n{self.tokens}"

    @property
    def query_type(self) -> str:
        return "fp32" if self.type in NARROW else self.type

    @property
    def queries(self) -> int:
        """Query tokens of each sequence."""
        return self.tokens if self.kind == "prefill" else 1

    @property
    def unit(self) -> str:
        return {"prefill": "GFLOP/s", "append": "µs"}.get(self.kind, "GB/s")

    @property
    def flops(self) -> float:
        """Of causal attention over the prompt: two products, half of the square."""
        return 2.0 * self.batch * self.heads * self.dim * self.tokens * (self.tokens + 1)


def from_name(name: str) -> Case:
    kind, element_type, batch, tokens = name.split("/")
    return Case(kind, element_type, int(batch[1:]), int(tokens[1:]), heads=40 if kind == "rope" else 32)


ALL = [
    *(f"decode/{t}/b{b}/n{n}" for t in DTYPES for b, n in ((1, 1024), (1, 4096), (1, 16384), (8, 4096))),
    *(f"alibi/{t}/b1/n4096" for t in ("fp32", "bf16", "fp16")),
    *(f"prefill/{t}/b1/n{n}" for t in ("fp32", "bf16") for n in (512, 2048, 4096)),
    *(f"rope/{t}/b1/n{n}" for t in ("fp32", "bf16") for n in (1, 4096)),
    *(f"append/{t}/b1/n4096" for t in DTYPES),
]
QUICK = ["decode/fp32/b1/n4096", "decode/bf16/b1/n4096", "alibi/fp32/b1/n4096", "prefill/fp32/b1/n512", "rope/fp32/b1/n4096", "append/bf16/b1/n4096"]


def select(patterns: list[str], quick: bool) -> list[Case]:
    """Cases that match any shell pattern; a pattern without wildcards matches as a prefix."""
    names = QUICK if quick else ALL
    return [from_name(n) for n in names if not patterns or any(fnmatch(n, p if "*" in p else p + "*") for p in patterns)]
