"""check_symbols.py --nm NM --target TARGET LIST: every symbol that an object in LIST (a file of paths) defines for others carries its target.

An inline function compiled for AVX-512 under a name that baseline code emits too may be the copy the linker keeps: SIGILL on the next machine.
So names must lie in a namespace of the target or in the renamed xsimd, and nothing of std may be left in the objects.
"""

import argparse
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--nm", required=True)
parser.add_argument("--target", required=True)
parser.add_argument("list", type=pathlib.Path)
arguments = parser.parse_args()

# `avx512` must not pass for `avx512_bf16`, nor `neon` for `neon64` or `neon_bf16`.
own = re.compile(rf"(?<![A-Za-z0-9]){arguments.target}(?![A-Za-z0-9])(?!_bf16)")
symbols = 0
faults = []
objects = [line for line in arguments.list.read_text().splitlines() if line]
for path in objects:
    # --extern-only: what stays inside an object cannot be mixed up
    output = subprocess.run([arguments.nm, "--demangle", "--defined-only", "--extern-only", path], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        match = re.match(r"^[0-9a-fA-F]*\s+([A-Za-z]) (.*)$", line)
        if not match:
            continue
        kind, name = match.groups()
        symbols += 1
        if re.match(r"^(.* )?std::", name.split("(")[0].split("<")[0]) or name.startswith(("operator new", "operator delete")):
            faults.append(f"{path}: {kind} {name}: std:: symbol in an ISA object")
        elif not own.search(name):
            faults.append(f"{path}: {kind} {name}: name does not carry the target {arguments.target}")
for fault in faults:
    print(fault)
print(f"{arguments.target}: {len(objects)} objects, {symbols} symbols, {len(faults)} faults")
sys.exit(1 if faults or symbols == 0 else 0)
