"""check_baseline.py --objdump OBJDUMP --arch ARCH LIST: no instruction beyond the ABI floor in the baseline objects in LIST (a file of paths).

x86_64: no ymm, zmm, mask or upper xmm register and no VEX or EVEX encoding. aarch64: nothing of dotprod, i8mm, bf16 or SVE.
"""

import argparse
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--objdump", required=True)
parser.add_argument("--arch", choices=["x86_64", "aarch64"], required=True)
parser.add_argument("list", type=pathlib.Path)
arguments = parser.parse_args()

BEYOND = {
    # In AT&T syntax. Every VEX or EVEX instruction on vectors begins with v; verr, verw and the vm* of virtualisation are none.
    "x86_64": re.compile(r"%[yz]mm|%xmm(1[6-9]|2[0-9]|3[01])|%k[0-7]\b|\{%k|^(?!verr|verw|vm(call|launch|resume|xo|func|read|write|clear|ptr))v[a-z]"),
    "aarch64": re.compile(r"^(s|u|us|su)dot\b|^bf(dot|mmla|mlal|cvt)|^(s|u|us)mmla\b|\bz[0-9]+\.[bhsdq]|\bp[0-9]+/[mz]"),
}[arguments.arch]

faults = []
instructions = 0
objects = [line for line in arguments.list.read_text().splitlines() if line]
for path in objects:
    output = subprocess.run([arguments.objdump, "--disassemble", "--demangle", "--no-show-raw-insn", path], check=True, capture_output=True,
                            text=True).stdout
    function = "?"
    for line in output.splitlines():
        header = re.match(r"^[0-9a-f]+ <(.*)>:$", line)
        if header:
            function = header.group(1)
            continue
        code = re.match(r"^\s*[0-9a-f]+:\s+(.*)$", line)
        if code:
            instructions += 1
            if BEYOND.search(code.group(1)):
                faults.append(f"{path}: {function}: {code.group(1).strip()}")
for fault in faults[:50]:
    print(fault)
print(f"{len(objects)} baseline objects, {instructions} instructions, {len(faults)} beyond the baseline")
sys.exit(1 if faults or instructions == 0 else 0)
