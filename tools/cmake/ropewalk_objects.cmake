# Object libraries. Every object is position independent with hidden visibility and is compiled once; the static library, the shared
# library, the tests and the tools are all made of the same objects (ROPEWALK_OBJECT_TARGETS, a global property).

function(ropewalk_object_properties name)
  set_target_properties(${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  set_property(GLOBAL APPEND PROPERTY ROPEWALK_OBJECT_TARGETS ${name})
endfunction()

# Sources of this folder that ask what the build has: ropewalk_build_facts(<sources>...).
function(ropewalk_build_facts)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS "${ROPEWALK_BUILD_FACTS}")
endfunction()

# Sources of this folder that are compiled as one, where reading the same headers is most of the work: ropewalk_compile_together(<files>...). The
# first one includes the others; their unnamed namespaces become one. (The files that CMake's UNITY_BUILD writes lie in the build folder: ccache takes
# those of two builds for different sources.)
function(ropewalk_compile_together)
  set(others ${ARGN})
  list(POP_FRONT others first)
  if(NOT others)
    return()
  endif()
  set_source_files_properties(${others} PROPERTIES HEADER_FILE_ONLY ON)
  list(JOIN others "\" -include \"" others)
  set_source_files_properties(${first} PROPERTIES COMPILE_FLAGS "-include \"${others}\"")
endfunction()

# Baseline objects: ropewalk_add_objects(<name> <sources>...). No sources, no target.
function(ropewalk_add_objects name)
  if(NOT ARGN)
    return()
  endif()
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PRIVATE ropewalk_baseline)
  target_compile_options(${name} PRIVATE ${ROPEWALK_SANITIZE_LIBRARY})
  ropewalk_object_properties(${name})
  set_property(GLOBAL APPEND PROPERTY ROPEWALK_BASELINE_TARGETS ${name})
endfunction()

# Kernel objects: the same sources once per ISA target, as ropewalk_isa_<target>.
function(ropewalk_add_isa_objects)
  if(NOT ARGN)
    return()
  endif()
  foreach(target IN LISTS ROPEWALK_ISA_TARGETS)
    string(TOUPPER "${target}" upper)
    set(name ropewalk_isa_${target})
    add_library(${name} OBJECT ${ARGN})
    target_link_libraries(${name} PRIVATE ropewalk_common)
    target_compile_definitions(${name} PRIVATE
      ROPEWALK_TARGET=${target}
      ROPEWALK_TARGET_${upper}=1
      xsimd=ropewalk_xsimd_${target})  # renames xsimd's namespace: its inline functions differ per target, the linker cannot mix them
    target_compile_options(${name} PRIVATE
      ${ROPEWALK_ISA_FLAGS_${target}}
      -fno-exceptions -fno-rtti -fno-math-errno
      $<$<NOT:$<CONFIG:Release>>:-O2>)  # xsimd 8.1.0 does not even compile at -O0, and an unoptimised kernel tests nothing
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ notes at every function that passes a 256- or 512-bit vector that GCC 4.6 passed it differently. No such call leaves an object.
      target_compile_options(${name} PRIVATE -Wno-psabi)
      # Reassociation of integer sums puts all products of a register tile before all additions, and spills most of them.
      target_compile_options(${name} PRIVATE -fno-tree-reassoc)
      if(target MATCHES "^avx512")
        # GCC bug 105593: _mm512_undefined_*() in its own headers warns once inlined.
        target_compile_options(${name} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
      endif()
    endif()
    if(NOT ropewalk_xsimd_dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      target_include_directories(${name} SYSTEM PRIVATE "${ropewalk_xsimd_dir}")
    endif()
    ropewalk_object_properties(${name})
    set_target_properties(${name} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
    set_property(GLOBAL APPEND PROPERTY ROPEWALK_ISA_OBJECT_TARGETS ${target})
  endforeach()
endfunction()

# Links an executable of this project to the objects themselves: tests and tools see what the shared library hides.
function(ropewalk_link_objects executable)
  get_property(objects GLOBAL PROPERTY ROPEWALK_OBJECT_TARGETS)
  target_link_libraries(${executable} PRIVATE ${objects} ropewalk_baseline Threads::Threads)
  if(ROPEWALK_WITH_TBB)
    target_link_libraries(${executable} PRIVATE TBB::tbb)
  endif()
endfunction()
