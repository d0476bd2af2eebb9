#!/usr/bin/env python3
"""Golden vectors from the published libraries: compares the stored ones, or makes new ones.

  pip install -r requirements.txt                       torch and transformers, pinned
  regenerate.py --compare [DIR]                         every output again from the stored inputs, against the stored outputs
  regenerate.py --out DIR                               the same cases with inputs drawn anew from params.seed

The stored inputs themselves were drawn in another order and cannot be had back from the seed.
DIR and --cases default to tests/golden. Exit code: 0 all agreed or written, 1 a file differs, 2 bad input.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging

import absolute
import alibi
import attention
import cases
import deberta
import rope
import t5
import xlnet

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
KINDS = {name: kind for module in (rope, alibi, t5, xlnet, deberta, absolute, attention) for name, kind in module.KINDS.items()}


def difference(got, stored, tolerance):
    """Largest error in units of its tolerance. fp64 is compared to 1e-9 of the tensor's largest value: libraries sum in different orders."""
    if got.shape != stored.shape or got.dtype != stored.dtype:
        return float("inf")
    if not stored.is_floating_point():
        return 0.0 if torch.equal(got, stored) else float("inf")
    error = (got.double() - stored.double()).abs().max().item()
    if stored.dtype == torch.float64:
        tolerance = 1e-9 * max(stored.abs().max().item(), 1.0)
    return error / tolerance if error else 0.0


def compare(case, kind):
    """(worst ratio, its tensor, number of outputs, inputs that are only read)."""
    outputs = kind.compute(case)
    ratios = {name: difference(x, case.tensors[name], kind.tolerance(case)) for name, x in outputs.items()}
    worst = max(ratios, key=ratios.get)
    return ratios[worst], worst, len(outputs), len(case.tensors) - len(outputs)


def remade(case, kind):
    case = cases.drawn(case, kind)
    for _ in range(2):  # fp64 truth reads fp32 outputs that are inputs of attention: rotated q and k of MLA, projected encodings of XLNet
        case = replace(case, tensors=case.tensors | kind.compute(case))
    return case


def run(arguments):
    root = arguments.compare or arguments.cases
    files = sorted(root.rglob("*.safetensors"))
    if not files:
        print(f"regenerate: {root} holds no .safetensors", file=sys.stderr)
        return 2
    differing = skipped = 0
    for path in files:
        name, case = path.relative_to(root), cases.read(path)
        kind = KINDS.get(case.kind)
        if kind is None:
            skipped += 1
            print(f"{name!s:62} skipped: {case.kind} needs a model's weights")
        elif arguments.out:
            cases.write(remade(case, kind), arguments.out / name)
            print(f"{name!s:62} written")
        else:
            ratio, worst, outputs, inputs = compare(case, kind)
            differing += ratio > 1
            verdict = "ok" if ratio <= 1 else "DIFFERS"
            print(f"{name!s:62} {verdict:8} {outputs:3} outputs of {inputs:2} inputs, worst {ratio:.1e} of its tolerance: {worst}")
    print(f"{len(files) - differing - skipped} {'written' if arguments.out else 'ok'}, {differing} differ, {skipped} skipped")
    return 1 if differing else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--compare", type=Path, nargs="?", const=GOLDEN, metavar="DIR")
    action.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--cases", type=Path, default=GOLDEN, metavar="DIR", help="files whose cases --out makes again")
    logging.set_verbosity_error()  # it would remark on token ids beyond these vocabularies
    with torch.no_grad():
        sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
