#!/usr/bin/env bash
# One test binary on one ISA target, for ctest: skips (77) if the processor lacks the target.
#
#   run_test.sh TARGET HAS_TARGET FALLBACK [EMULATOR ...] -- BINARY [ARGUMENT ...]
#
# EMULATOR (may be empty) runs both HAS_TARGET and BINARY. FALLBACK is "" or a script with the interface of tools/emulate-avx512.sh, which
# runs BINARY if the processor lacks TARGET. ROPEWALK_TEST_SHARDS=N splits the cases of the binary among N processes at a time.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$1 has_target=$2 fallback=$3
shift 3
emulator=()
while [ "$1" != -- ]; do emulator+=("$1"); shift; done
shift
# "default": no limit, the library chooses. Anything else: that target or nothing.
if [ "$target" = default ]; then export ROPEWALK_ISA=; else export ROPEWALK_ISA=$target; fi

"${emulator[@]}" "$has_target" "$target"
case $? in
  0) run() { "${emulator[@]}" "$@"; } ;;
  1) if [ -z "$fallback" ]; then
       echo "ropewalk-test: skipped: host lacks $target"
       exit 77
     fi
     # The emulated machine is empty: it gets the environment, the golden vectors, and a processor that has the target and no more.
     run() {
       local options=() variable
       case $target in
         avx512) options=(--cpu skylake-x) ;;
         avx512_bf16) options=(--cpu sapphire-rapids) ;;
       esac
       for variable in ROPEWALK_ISA GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX; do
         if [ -n "${!variable:-}" ]; then options+=(--env "$variable=${!variable}"); fi
       done
       bash "$fallback" "${options[@]}" --file "$root/tests/golden:$root/tests/golden" "$@"
     } ;;
  *) echo "run_test.sh: $has_target does not know '$target' or did not run" >&2; exit 1 ;;
esac

shards=${ROPEWALK_TEST_SHARDS:-1}
if [ "$shards" -le 1 ]; then
  run "$@"
  exit
fi

logs=$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-shards.XXXXXX") || exit 1
trap 'rm -rf "$logs"' EXIT
pids=()
for ((i = 0; i < shards; ++i)); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i run "$@" >"$logs/$i" 2>&1 &
  pids+=($!)
done
# An emulator that died of a fault of its own has tested nothing: once more. (qemu 7.2 runs into assertions where threads begin and end at a time.)
code=0
failed=()
for ((i = 0; i < shards; ++i)); do
  wait "${pids[$i]}"
  shard_code=$?
  if [ $shard_code -gt 128 ] && [ ${#emulator[@]} -gt 0 ] && grep -qE '^Bail out! ERROR:\.\./\.\./|^QEMU internal SIG' "$logs/$i"; then
    cat "$logs/$i"
    echo "run_test.sh: shard $((i + 1)) of $shards: the emulator died (exit code $shard_code): once more"
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i run "$@" >"$logs/$i" 2>&1
    shard_code=$?
  fi
  if [ $shard_code = 0 ]; then
    cat "$logs/$i"
  else
    code=$shard_code
    failed+=("$i:$code")
  fi
done
# What failed stands last: reports cut long outputs in the middle.
for f in "${failed[@]}"; do
  cat "$logs/${f%:*}"
  echo "run_test.sh: shard $((${f%:*} + 1)) of $shards: exit code ${f#*:}"
done
exit $code
