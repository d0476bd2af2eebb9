"""python -m ropewalk: what ropewalk-info shows, of this package."""

import sys

from . import _core

sys.exit(_core._info(["python -m ropewalk", *sys.argv[1:]]))
