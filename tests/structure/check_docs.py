"""check_docs.py DOXYGEN DOXYFILE: builds the documentation; doxygen must have nothing to say.

Every class, function, type, enumeration and macro of the public headers has a comment. What needs none: fields and enumerators, which their type's
comment may be about; constructors, destructors and operators; ropewalk_<handle>_destroy(), which the top of ropewalk.h describes. Ends with 77 where
there is no doxygen."""

import re
import shutil
import subprocess
import sys

OBVIOUS = re.compile(
    r"\((variable|enumvalue)\) of .* is not documented"
    r"|Member (operator\b.*|ropewalk_\w+_destroy\(.*) \(function\) of .* is not documented"
    r"|Member (\w+)\(.* \(function\) of (class|struct) ropewalk::(\w+::)*\3 is not documented"
)


def main():
    if shutil.which(sys.argv[1]) is None:
        print("no doxygen: tools/setup.sh --test installs it")
        return 77
    run = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    complaints = [line for line in run.stderr.splitlines() if not OBVIOUS.search(line)]
    print("\n".join(complaints))
    return 1 if complaints or run.returncode != 0 else 0


sys.exit(main())
