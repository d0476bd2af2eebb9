#!/usr/bin/env bash
# Installs what ropewalk needs on Debian 12 or later: the packages to build it, and with --test also what tools/test.sh uses (clang, the
# arm64 cross compiler with a sysroot, qemu, the newest xsimd headers, a second oneTBB, numpy, libabigail, doxygen). Does nothing, quickly, when all
# is there.
#
#   tools/setup.sh [--test]
#
# Downloads that are no Debian package of this machine go to ${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config libxsimd-dev libtbb-dev libgtest-dev libbenchmark-dev libcli11-dev
          nlohmann-json3-dev libfmt-dev libdnnl-dev python3 binutils dpkg-dev file python3-venv python3-dev)
test_packages=(clang-19 g++-aarch64-linux-gnu qemu-user unzip python3-numpy abigail-tools doxygen)
for_tests=0
for argument in "$@"; do
  case $argument in
    --test) for_tests=1 ;;
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument '$argument' (known: --test)" >&2; exit 2 ;;
  esac
done
if [ "$for_tests" = 1 ]; then packages+=("${test_packages[@]}"); fi
cache=${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "setup.sh: neither root nor sudo: cannot run: $*" >&2; return 1
  fi
}

# $@: packages. Installs those that are missing.
install_packages() {
  local missing=() package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then missing+=("$package"); fi
  done
  if [ ${#missing[@]} = 0 ]; then return; fi
  echo "setup.sh: installing ${missing[*]}"
  as_root apt-get -q update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"
}

# TBB, GoogleTest, Google Benchmark, fmt and xsimd for arm64, unpacked into a folder of our own. The system's apt learns of no foreign
# architecture: a private configuration reads the same sources with its own state and cache.
make_sysroot() {
  local sysroot=$cache/sysroot-arm64
  local packages=(libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5 libhwloc15 libudev1 libgtest-dev libbenchmark-dev libbenchmark1debian
                  libxsimd-dev libfmt-dev libfmt9)
  if [ "$(cat "$sysroot/.packages" 2>/dev/null)" = "${packages[*]}" ]; then return; fi
  echo "setup.sh: making $sysroot"
  local work
  work=$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-apt.XXXXXX")
  mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/debs"
  : > "$work/status"
  cat > "$work/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
CONF
  APT_CONFIG=$work/apt.conf apt-get -q update
  (cd "$work/debs" && APT_CONFIG=$work/apt.conf apt-get -q download "${packages[@]}")
  mkdir -p "$work/sysroot" "$cache"
  local deb
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/sysroot"; done
  echo "${packages[*]}" > "$work/sysroot/.packages"
  rm -rf "$sysroot"
  mv "$work/sysroot" "$sysroot"
  rm -rf "$work"
}

# download_wheel <folder> <package==version>
download_wheel() {
  local python=python3
  if ! $python -m pip --version >/dev/null 2>&1; then
    install_packages python3-pip
    python=/usr/bin/python3
  fi
  $python -m pip -q download --no-deps --only-binary=:all: -d "$1" "$2"
}

# The newest xsimd that ships in an ordinary package: the headers inside the wheel of pythran.
pythran=0.19.0
xsimd=14.1.0
fetch_newest_xsimd() {
  local folder=$cache/xsimd-$xsimd
  if [ -e "$folder/xsimd/xsimd.hpp" ]; then return; fi
  echo "setup.sh: fetching xsimd $xsimd (from pythran $pythran) into $folder"
  local work
  work=$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-xsimd.XXXXXX")
  download_wheel "$work" "pythran==$pythran"
  unzip -q "$work"/pythran-*.whl 'pythran/xsimd/*' -d "$work"
  local version
  version=$(sed -nE 's/^#define XSIMD_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' "$work/pythran/xsimd/config/xsimd_config.hpp" | paste -sd.)
  if [ "$version" != "$xsimd" ]; then
    echo "setup.sh: pythran $pythran carries xsimd $version, not $xsimd" >&2
    return 1
  fi
  mkdir -p "$folder"
  cp -R "$work/pythran/xsimd" "$folder/"
  rm -rf "$work"
}

# Another version of oneTBB than Debian's, to have two in one process: tests/packaging/two_tbb.
tbb=2022.3.1
fetch_other_tbb() {
  local folder=$cache/tbb-$tbb
  if [ -e "$folder/libtbb.so.12" ] || [ "$(uname -m)" != x86_64 ]; then return; fi
  echo "setup.sh: fetching oneTBB $tbb into $folder"
  local work
  work=$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-tbb.XXXXXX")
  download_wheel "$work" "tbb==$tbb"
  mkdir -p "$folder"
  unzip -q -j "$work"/tbb-*.whl "*/lib/libtbb.so.12" -d "$folder"
  rm -rf "$work"
}

install_packages "${packages[@]}"
if [ "$for_tests" = 1 ]; then
  make_sysroot
  fetch_newest_xsimd
  fetch_other_tbb
fi
