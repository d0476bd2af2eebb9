"""check_exports.py --nm NM --header ROPEWALK_H LIBRARY: the shared library exports ropewalk's public names and nothing else.

Of the C names it exports exactly the functions that the header declares: none is declared without being there, none is there undeclared.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import c_header

parser = argparse.ArgumentParser()
parser.add_argument("--nm", required=True)
parser.add_argument("--header", type=pathlib.Path, required=True)
parser.add_argument("library")
arguments = parser.parse_args()

output = subprocess.run([arguments.nm, "--dynamic", "--demangle", "--defined-only", arguments.library], check=True, capture_output=True, text=True).stdout
names = [line.split(" ", 2)[2] for line in output.splitlines() if re.match(r"^[0-9a-f]+ [A-Za-z] ", line)]
declared = {name for _, name, _ in c_header.functions(arguments.header.read_text())}
public = re.compile(r"^(vtable for |typeinfo (name )?for )?ropewalk::(?!simd::|runtime::|detail::|c_api::)")
faults = [f"exported, but not part of the public API: {name}" for name in names if name not in declared and not public.match(name)]
faults += [f"declared in {arguments.header.name}, but not exported: {name}" for name in sorted(declared - set(names))]
for fault in faults:
    print(fault)
print(f"{len(names)} exported names, {len(declared)} of them C functions, {len(faults)} faults")
sys.exit(1 if faults or not names or not declared else 0)
