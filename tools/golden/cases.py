"""Golden cases: reading, writing, fp64 truth and the shared helpers of the files beside this one.

The files of tests/golden are the list of cases themselves: name, kind, source, params and the shapes of all tensors come from them. A module gives,
for each kind, a function that computes every output from the inputs and params, and the names of the inputs that are random.
"""

import importlib
import json
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import safe_open
from safetensors.torch import save_file


@dataclass
class Case:
    path: Path
    metadata: dict
    tensors: dict

    @property
    def params(self):
        return json.loads(self.metadata["params"])

    @property
    def kind(self):
        return self.metadata["kind"]

    @property
    def source(self):
        return self.metadata["source"]

    def __getattr__(self, name):  # case.q is the tensor q
        if name.startswith("__"):
            raise AttributeError(name)
        return self.tensors[name]

    def has(self, name):
        return name in self.tensors


@dataclass
class Kind:
    compute: callable  # Case -> {output: tensor}
    random: tuple = ()  # inputs that are drawn
    tolerance: callable = lambda case: 5e-6  # of fp32 outputs, absolute: the table in tests/golden/README.md


def read(path):
    with safe_open(path, framework="pt") as file:
        return Case(path, file.metadata(), {name: file.get_tensor(name) for name in file.keys()})


def write(case, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = json.dumps({package: version(package) for package in ("torch", "transformers", "safetensors", "numpy")})
    save_file({name: t.contiguous() for name, t in case.tensors.items()}, path, metadata=case.metadata | {"versions": versions})


def drawn(case, kind):
    """The case with new random inputs: normal, of each stored tensor's own size, in alphabetical order from params.seed."""
    generator = torch.Generator().manual_seed(case.params.get("seed", 0))
    tensors = dict(case.tensors)
    for name in sorted(set(kind.random) & set(tensors)):
        old = tensors[name]
        size = old.double().pow(2).mean().sqrt().to(old.dtype)
        tensors[name] = torch.randn(old.shape, generator=generator, dtype=old.dtype) * (1.0 if abs(size - 1) < 0.1 else size)
    return replace(case, tensors=tensors)


def load(dotted):
    """An attribute of transformers by its full name, which is what `source` holds."""
    module, _, name = dotted.strip().rpartition(".")
    return getattr(importlib.import_module(module), name)


def stub(**attributes):
    return SimpleNamespace(training=False, **attributes)


class Gives(torch.nn.Module):
    """In place of a projection: its output is chosen by the caller, whatever goes in."""

    def __init__(self, choose):
        super().__init__()
        self.choose = choose if callable(choose) else lambda x: choose

    def forward(self, x):
        return self.choose(x)


def additive(keep, dtype=torch.float32):
    """A boolean mask as transformers adds it to scores."""
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)


def tokens_heads(x):
    """[B, H, S, D] as a projection gives it: [B, S, H * D]."""
    return x.transpose(1, 2).flatten(2)


def heads_first(x, heads):
    """[B, S, H * D] back to [B, H, S, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()


def grouped(x, heads):
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def attend64(q, k, v, scale, keep=None, bias=None, softcap=None, sinks=None):
    """fp64 truth of attention: out, lse over keys, lse with the sink. All-masked rows are not expected."""
    q, k, v = (x.double() for x in (q, grouped(k, q.shape[1]), grouped(v, q.shape[1])))
    scores = q @ k.transpose(-1, -2) * scale
    return softmax64(scores, v, keep, bias, softcap, sinks)


def softmax64(scores, v, keep=None, bias=None, softcap=None, sinks=None):
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    lse = with_sink = scores.logsumexp(-1)
    if sinks is not None:
        with_sink = torch.logaddexp(lse, sinks.double()[None, :, None].expand_as(lse))
    return torch.exp(scores - with_sink[..., None]) @ v.double(), lse, with_sink
