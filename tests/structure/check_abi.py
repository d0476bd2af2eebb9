"""check_abi.py [--record]: the binary interface of include/ropewalk/ropewalk.h is the recorded one (libabigail's abidiff, x86_64).

The library has no debug information to read types from. So every function that the header declares is given an empty body, compiled as C with -g: a
library with the same C interface, since the compiler holds runtime/c_api to the header and check_exports.py holds the library to its list of functions.
The constants of the header become the values of an enumeration of their type, which a function returns. Exit code 77 where libabigail is missing.

Any difference fails, additions too: so that what is recorded is what is there. Record it with --record, in the commit that changes the header. If
abidiff calls the change incompatible, ROPEWALK_SOVERSION (CMakeLists.txt) goes up with it.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

import c_header

root = pathlib.Path(__file__).resolve().parents[2]
recorded = pathlib.Path(__file__).with_name("ropewalk.abi")
parser = argparse.ArgumentParser()
parser.add_argument("--cc", default="cc")
parser.add_argument("--record", action="store_true")
arguments = parser.parse_args()

if not shutil.which("abidw") or not shutil.which("abidiff"):
    print("abidw, abidiff not found: tools/setup.sh --test installs them (abigail-tools)")
    sys.exit(77)

header = (root / "include/ropewalk/ropewalk.h").read_text()
functions = c_header.functions(header)
enumerations = c_header.enumerations(header)
source = ["#include <ropewalk/ropewalk.h>"]
for type_name, constants in enumerations.items():
    values = ", ".join(f"value_of_{name} = {name}" for name in constants)
    source += [f"enum values_of_{type_name} {{{values}}} values_of_{type_name}(void) {{ return 0; }}"]
source += [f"{result}{name}({parameters}) {{ return 0; }}" for result, name, parameters in functions]

with tempfile.TemporaryDirectory() as work:
    library = f"{work}/libropewalk.so"
    command = [arguments.cc, "-std=c99", "-g", "-fPIC", "-shared", "-x", "c", "-I", root / "include", "-o", library, "-"]
    subprocess.run(command, check=True, text=True, input="\n".join(source) + "\n")
    if arguments.record:
        options = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed"]
        subprocess.run(["abidw", *options, "--out-file", recorded, library], check=True)
    difference = subprocess.run(["abidiff", "--harmless", "--no-show-locs", recorded, library], capture_output=True, text=True)

print(difference.stdout + difference.stderr, end="")
print(f"{len(functions)} functions, {len(enumerations)} enumerations: {'the recorded interface' if difference.returncode == 0 else 'see check_abi.py'}")
sys.exit(1 if difference.returncode != 0 or not functions or not enumerations else 0)
