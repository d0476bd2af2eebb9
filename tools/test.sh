#!/usr/bin/env bash
# Builds and tests everything, from a clean clone: installs what is missing, then one ctest run over all stages, in order, that stops at the
# first failure. Builds are tests of that run too (<stage>: build), so its last lines are the summary of all there is.
#
#   tools/test.sh [--quick] [STAGE ...]
#
#   release    g++, -Werror: all tests on every x86 target the host has, structure and packaging tests
#   emulated   only where the host lacks AVX-512: the kernels, and a choice of the runtime, on an emulated processor (tools/emulate-avx512.sh)
#   clang      the library with clang 19, -Werror
#   xsimd      the kernels with the newest xsimd headers
#   asan       address and undefined-behaviour sanitizers
#   tsan       thread sanitizer: whatever has threads
#   arm64      cross build, on qemu's cortex-a53, neoverse-n1 (no dot products) and max (all of them)
#   debug      -O0 baseline code on qemu's Nehalem (no AVX: an instruction too new is a SIGILL) and Haswell
#   python     the wheel of the Python package and its tests, which need numpy
#   transformers  only when named: the package inside transformers (installs torch, 5 GB)
#   vllm       only when named, or as --vllm: the package inside vLLM (installs it, 7 GB)
#
# Without arguments all of them but the last two, in this order; --quick: release only. ROPEWALK_JOBS: parallel jobs, default all cores. Builds go to
# build/test/<stage>.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=${ROPEWALK_JOBS:-$(nproc)}
cache=${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}

# Stages share what objects are the same in them. (A second clone finds the objects of the first with CCACHE_BASEDIR set.)
export CCACHE_NOHASHDIR=1

has_avx512=0
if grep -qw avx512f /proc/cpuinfo; then has_avx512=1; fi

# What is too slow for a sanitizer or an emulated processor and tells nothing new there: long sequences, checked in full by `release`.
long='*B06*:*C20*:*D20*:*F06*:presets/replay_cuts*'
# Many shapes of the same: two minutes on each of qemu's processors, one with the address sanitizer.
many='types/*matches_definition*:types/*same_bits*:types/*chain_is_causal*:all/cascade_types*:relative_attention.matches_definition'
many+=':relative_attention.workspace*:attention_bias_test.same_bits*:attention_forms.same_bits*'
# What proves the same of the runtime on every target (that threads, pages and batches do not show), and every second of many shapes: half a minute
# a piece on qemu.
shapes="$many:v_in_k.has*:v_in_k.threads*:*batch_and_pages*:relative_attention.pages*:relative_attention.other*:rope.A01*:*cascade.masks_and_biases*"
shapes+=':gguf_config_damage*:attention_bias_test.over_a_grid*'
shapes+=':executor.a_child_of_fork*'  # in which qemu 7.2 runs into an assertion of its own at the first thread
for digit in 0 2 4 6 8; do shapes+=":all/attention_shapes*$digit:seeds/kv_cache_model*$digit"; done
# Thread sanitizer: whatever runs on more than one thread, and not all pairs of types.
single='attention.*:*attention_shapes*:attention_merge.*:attention_invariance.batch*:*C20*:*match*definition*:*config*:rope_families*:sinusoid*'
single+=':relative_attention.workspace*:types/*hadamard*:types/*masks_and_biases*:types/quantised*same_bits*/int4*:types/*same_bits*/fp8*'
single+=':attention_bias_test.same_bits*:all/cascade_types*/1?:all/cascade_types*/2?'
for digit in 2 3 6 7 8 9; do single+=":all/cascade_types*/$digit"; done
# An -O0 build under emulation: a little of everything, for instructions that are too new.
brief='dispatch.*:*errors*:*empty*:attention.causal*:attention.head*:attention.window*:attention.mixed*:alibi*:*A17*:*A19*:kv_append*:kv_cache.*'
# Not F03_environment_variable: it starts itself again, and qemu-x86_64 lets the child run on the host's processor.
brief+=':*fold*:*non_finite*-*F03_environment_variable'

# On an emulated processor with AVX-512: all kernels that need it, and attention as a whole.
kernels='kv_kernels*:kv_packing*:kv_quantised*:rope_kernels*:dispatch.*:targets/*:attention.*:attention_merge*:types/quantised*masks*:types/*peaked*'
kernels+=":types/tree*masks*/plain_bf16:types/*masked_slots*:quantised_*:k_to_v*-$long:targets/*/avx2"

# Sets `options`: what a stage's build is, for `cmake`.
configuration() {
  local only_tests=(-DROPEWALK_BUILD_TOOLS=OFF -DROPEWALK_BUILD_BENCH=OFF -DROPEWALK_LLAMA_EXAMPLE=OFF)
  case $1 in
    release) options=(--preset release -DROPEWALK_WERROR=ON -DROPEWALK_LLAMA_EXAMPLE=ON -DCMAKE_INSTALL_PREFIX=/usr) ;;  # Debian packages
    emulated) options=(--preset release "${only_tests[@]}" -DROPEWALK_WERROR=ON -DROPEWALK_STATIC_TESTS=ON -DROPEWALK_WITH_TBB=OFF
                     "-DROPEWALK_TEST_TARGETS=avx512:simd;avx512_bf16" "-DROPEWALK_TEST_FOLDERS=simd;runtime" "-DROPEWALK_TEST_FILTER=$kernels") ;;
    clang) options=(--preset clang "${only_tests[@]}" -DROPEWALK_WERROR=ON -DROPEWALK_BUILD_TESTS=OFF "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG") ;;
    xsimd) options=(--preset release "${only_tests[@]}" -DROPEWALK_WERROR=ON "-DROPEWALK_XSIMD_INCLUDE_DIR=$cache/xsimd-14.1.0"
                    "-DROPEWALK_TEST_FOLDERS=simd;structure") ;;
    asan) options=(--preset asan "${only_tests[@]}" -DROPEWALK_WERROR=ON -DROPEWALK_TARGETS=avx2 -DROPEWALK_TEST_TARGETS=avx2
                   "-DROPEWALK_TEST_FILTER=-$long:$many") ;;
    tsan) options=(--preset tsan "${only_tests[@]}" -DROPEWALK_TARGETS=avx2 -DROPEWALK_TEST_TARGETS=avx2 -DROPEWALK_TEST_FOLDERS=runtime
                   "-DROPEWALK_TEST_SOURCES=executor|attention|cascade|tree|kv_cache_test|kv_pages|rope_(test|axes|cache)"
                   "-DROPEWALK_TEST_FILTER=-$single") ;;
    arm64) options=(--preset arm64 "${only_tests[@]}" "-DROPEWALK_TEST_FOLDERS=simd;runtime;structure"
                    "-DROPEWALK_TEST_MACHINES=cortex-a53:neon;neoverse-n1:neon:simd;max:neon_bf16" "-DROPEWALK_TEST_FILTER=-$long:$shapes") ;;
    debug) options=(--preset debug "${only_tests[@]}" -DROPEWALK_TARGETS=avx2 "-DROPEWALK_TEST_FOLDERS=simd;runtime;c_api"
                    "-DROPEWALK_TEST_SOURCES=/simd/|errors|attention_test|alibi|executor|kv_(cache_test|pages)|rope_test"
                    "-DROPEWALK_TEST_MACHINES=Nehalem:scalar;Haswell:avx2" "-DROPEWALK_TEST_FILTER=$brief") ;;
    python|transformers|vllm) options=() ;;  # tools/test-python.sh
    *) echo "test.sh: unknown stage '$1' (see --help)" >&2; return 1 ;;
  esac
}

stages=()
quick=0
for argument in "$@"; do
  case $argument in
    --quick) quick=1 ;;
    --vllm) stages+=(vllm) ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) configuration "$argument"; stages+=("$argument") ;;
  esac
done
if [ "$quick" = 1 ]; then
  stages=(release)
elif [ ${#stages[@]} = 0 ]; then
  stages=(release emulated clang xsimd asan tsan arm64 debug python)
  if [ "$has_avx512" = 1 ]; then stages=("${stages[@]/emulated/}"); fi
fi

if [ "$quick" = 1 ]; then tools/setup.sh; else tools/setup.sh --test; fi

# The ctest run over all stages: for each its build, then the tests that its configuration registered.
super=build/test/all
mkdir -p "$super"
: > "$super/CTestTestfile.cmake"
for stage in "${stages[@]}"; do
  if [ -z "$stage" ]; then continue; fi
  folder=$root/build/test/$stage
  configuration "$stage"
  if [[ $stage =~ ^(python|transformers|vllm)$ ]]; then
    script=("[[$root/tools/test-python.sh]]")
    if [ "$stage" != python ]; then script+=("--$stage"); fi
    cat >> "$super/CTestTestfile.cmake" <<END
add_test([[$stage: tests]] ${script[*]})
set_tests_properties([[$stage: tests]] PROPERTIES LABELS $stage TIMEOUT 3600)
END
    continue
  fi
  log=$root/build/test/$stage.configure.log
  echo "test.sh: configuring $stage"
  if ! cmake "${options[@]}" "-DROPEWALK_TEST_STAGE=$stage" -B "$folder" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  if [ "$stage" = emulated ]; then
    echo "add_test([[emulated: emulator]] bash [[$root/tools/emulate-avx512.sh]] --setup)" >> "$super/CTestTestfile.cmake"
  fi
  cat >> "$super/CTestTestfile.cmake" <<END
add_test([[$stage: build]] [[cmake]] --build [[$folder]] --parallel $jobs)
set_tests_properties([[$stage: build]] PROPERTIES LABELS $stage TIMEOUT 3600)
if(EXISTS [[$folder/CTestTestfile.cmake]])
  subdirs([[$folder]])
endif()
END
done

# One test at a time, in order; a test binary spreads its cases over the cores itself.
export ROPEWALK_TEST_SHARDS=${ROPEWALK_TEST_SHARDS:-$jobs}
exec ctest --test-dir "$super" --output-on-failure --stop-on-failure
