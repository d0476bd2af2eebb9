# Cross build for AArch64 with Debian's g++-aarch64-linux-gnu and the sysroot tools/setup.sh --test makes; binaries run under qemu-aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

if(NOT ROPEWALK_SYSROOT)
  if(DEFINED ENV{ROPEWALK_CACHE})
    set(ROPEWALK_SYSROOT "$ENV{ROPEWALK_CACHE}/sysroot-arm64")
  else()
    set(ROPEWALK_SYSROOT "$ENV{HOME}/.cache/ropewalk/sysroot-arm64")
  endif()
endif()
set(ROPEWALK_SYSROOT "${ROPEWALK_SYSROOT}" CACHE PATH "arm64 packages unpacked by tools/setup.sh --test")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ROPEWALK_SYSROOT)

set(CMAKE_FIND_ROOT_PATH "${ROPEWALK_SYSROOT}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)  # CLI11, nlohmann-json, fmt: headers in /usr/include, the same for every processor
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${ROPEWALK_SYSROOT}/usr/lib/aarch64-linux-gnu")
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath-link,${ROPEWALK_SYSROOT}/usr/lib/aarch64-linux-gnu")

# Without -cpu: the tests choose one (ROPEWALK_TEST_MACHINES).
set(CMAKE_CROSSCOMPILING_EMULATOR
  "qemu-aarch64;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=${ROPEWALK_SYSROOT}/usr/lib/aarch64-linux-gnu")
