# Flags. Two interface targets:
#   ropewalk_common     every object of this project: language level, warnings, include folders
#   ropewalk_baseline   every object that is not an ISA kernel: pinned to the ABI floor of the processor, so that no build flag of a user
#                       (-march=native) and no inline function can put an instruction there that some host lacks

include(CheckCXXCompilerFlag)

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" ropewalk_processor)
if(ropewalk_processor MATCHES "^(x86_64|amd64)$")
  set(ROPEWALK_ARCH x86_64)
elseif(ropewalk_processor MATCHES "^(aarch64|arm64)$")
  set(ROPEWALK_ARCH aarch64)
else()
  set(ROPEWALK_ARCH other)  # the scalar target only
endif()

# The thread sanitizer has to see every synchronisation, that of tests and tools too. The address sanitizer watches the library: what tests hand over is
# on its heap, and their objects stay those of a release build (instrumented they would take twice as long to compile).
set(ROPEWALK_SANITIZE_LIBRARY)
if(ROPEWALK_SANITIZE)
  set(flags -fsanitize=${ROPEWALK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(ROPEWALK_SANITIZE MATCHES "thread")
    add_compile_options(${flags})
  else()
    set(ROPEWALK_SANITIZE_LIBRARY ${flags} -O1 -g1)
  endif()
  add_link_options(-fsanitize=${ROPEWALK_SANITIZE})
endif()

add_library(ropewalk_common INTERFACE)
target_compile_features(ropewalk_common INTERFACE cxx_std_20)
target_include_directories(ropewalk_common INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
target_compile_options(ropewalk_common INTERFACE
  -Wall -Wextra -Wpedantic -Wundef
  $<$<BOOL:${ROPEWALK_WERROR}>:-Werror>
  -ffp-contract=off)  # a*b+c is fused only where the source says so: same bits from every compiler (AArch64 would contract scalar code too)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(ropewalk_common INTERFACE -Wno-restrict)  # GCC bug 105651: "text" + std::string warns at -O2 and above
endif()

add_library(ropewalk_baseline INTERFACE)
target_link_libraries(ropewalk_baseline INTERFACE ropewalk_common)
if(ROPEWALK_ARCH STREQUAL "x86_64")
  target_compile_options(ropewalk_baseline INTERFACE -march=x86-64 -mno-avx)
elseif(ROPEWALK_ARCH STREQUAL "aarch64")
  target_compile_options(ropewalk_baseline INTERFACE -march=armv8-a)
endif()

# --- ISA targets ------------------------------------------------------------------------------------------------------------------------
# ROPEWALK_ISA_TARGETS: those this compiler can build. ROPEWALK_ISA_FLAGS_<target>: how.
# ROPEWALK_BUILD_FACTS: ROPEWALK_WITH_TBB and ROPEWALK_HAVE_TARGET_<TARGET>, for the sources that ask (ropewalk_build_facts()). All others are the same
# objects in every build, which ccache knows.
set(ROPEWALK_BUILD_FACTS "ROPEWALK_WITH_TBB=$<BOOL:${ROPEWALK_WITH_TBB}>")
if(ROPEWALK_ARCH STREQUAL "x86_64")
  set(ropewalk_isa_candidates avx2 avx512 avx512_bf16)
  set(ROPEWALK_ISA_FLAGS_avx2 -march=x86-64 -mavx2 -mfma -mf16c)
  set(ROPEWALK_ISA_FLAGS_avx512 ${ROPEWALK_ISA_FLAGS_avx2} -mavx512f -mavx512cd -mavx512dq -mavx512bw -mavx512vl)
  set(ROPEWALK_ISA_FLAGS_avx512_bf16 ${ROPEWALK_ISA_FLAGS_avx512} -mavx512vnni -mavx512bf16)
elseif(ROPEWALK_ARCH STREQUAL "aarch64")
  set(ropewalk_isa_candidates neon neon_bf16)
  set(ROPEWALK_ISA_FLAGS_neon -march=armv8-a)
  set(ROPEWALK_ISA_FLAGS_neon_bf16 -march=armv8.2-a+dotprod+i8mm+bf16)
else()
  set(ropewalk_isa_candidates)
endif()

foreach(target IN LISTS ROPEWALK_TARGETS)
  if(NOT target IN_LIST ropewalk_isa_candidates AND NOT target STREQUAL "scalar")
    message(FATAL_ERROR "ropewalk: ROPEWALK_TARGETS names '${target}'; on ${CMAKE_SYSTEM_PROCESSOR} there are: scalar ${ropewalk_isa_candidates}")
  endif()
endforeach()

set(ROPEWALK_ISA_TARGETS)
foreach(target IN LISTS ropewalk_isa_candidates)
  if(ROPEWALK_TARGETS AND NOT target IN_LIST ROPEWALK_TARGETS)
    continue()
  endif()
  string(TOUPPER "${target}" upper)
  list(JOIN ROPEWALK_ISA_FLAGS_${target} " " flags)
  check_cxx_compiler_flag("${flags}" ROPEWALK_COMPILER_HAS_${upper})
  if(ROPEWALK_COMPILER_HAS_${upper})
    list(APPEND ROPEWALK_ISA_TARGETS ${target})
    list(APPEND ROPEWALK_BUILD_FACTS ROPEWALK_HAVE_TARGET_${upper}=1)
  else()
    message(STATUS "ropewalk: the compiler cannot build target ${target} (${flags}): left out")
  endif()
endforeach()

# --- xsimd: headers only; the CMake package of Debian's 8.1.0 drags in a missing xtl -----------------------------------------------------
if(ROPEWALK_ISA_TARGETS)
  if(NOT ROPEWALK_XSIMD_INCLUDE_DIR)
    find_path(ROPEWALK_XSIMD_FOUND_DIR xsimd/xsimd.hpp)
    set(ropewalk_xsimd_dir "${ROPEWALK_XSIMD_FOUND_DIR}")
  else()
    set(ropewalk_xsimd_dir "${ROPEWALK_XSIMD_INCLUDE_DIR}")
  endif()
  if(NOT EXISTS "${ropewalk_xsimd_dir}/xsimd/xsimd.hpp")
    message(FATAL_ERROR "ropewalk: no xsimd/xsimd.hpp in '${ropewalk_xsimd_dir}': install libxsimd-dev or set ROPEWALK_XSIMD_INCLUDE_DIR")
  endif()
  if(NOT ropewalk_xsimd_dir STREQUAL "${ropewalk_xsimd_reported}")
    message(STATUS "ropewalk: xsimd headers in ${ropewalk_xsimd_dir}")
    set(ropewalk_xsimd_reported "${ropewalk_xsimd_dir}" CACHE INTERNAL "")
  endif()
endif()
