#!/usr/bin/env bash
# Measures decode throughput on this machine: installs what is missing, builds the release, runs ropewalk-decode with the arguments given.
#
#   tools/decode.sh [ARGUMENT ...]        tools/decode.sh --help lists the tool's own arguments
#
# Everything but the tool's own output goes to stderr.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/tools/setup.sh" >&2
(
  cd "$root"
  if [ ! -e build/release/build.ninja ]; then cmake --preset release; fi
  cmake --build build/release --parallel "${ROPEWALK_JOBS:-$(nproc)}" --target ropewalk-decode
) >&2
exec "$root/build/release/bin/ropewalk-decode" "$@"
