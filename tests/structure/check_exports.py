"""check_exports.py --nm NM LIBRARY: the shared library exports ropewalk's public names and nothing else."""

import argparse
import re
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--nm", required=True)
parser.add_argument("library")
arguments = parser.parse_args()

output = subprocess.run([arguments.nm, "--dynamic", "--demangle", "--defined-only", arguments.library], check=True, capture_output=True, text=True).stdout
names = [line.split(" ", 2)[2] for line in output.splitlines() if re.match(r"^[0-9a-f]+ [A-Za-z] ", line)]
public = re.compile(r"^(vtable for |typeinfo (name )?for )?(ropewalk::(?!simd::|runtime::|detail::)|ropewalk_)")
faults = [name for name in names if not public.match(name)]
for name in faults:
    print(f"exported, but not part of the public API: {name}")
print(f"{len(names)} exported names, {len(faults)} faults")
sys.exit(1 if faults or not names else 0)
