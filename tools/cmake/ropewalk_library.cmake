# ropewalk_shared and ropewalk_static, both libropewalk, and the alias ropewalk::ropewalk.

get_property(ropewalk_objects GLOBAL PROPERTY ROPEWALK_OBJECT_TARGETS)
set(ropewalk_object_files)
foreach(objects IN LISTS ropewalk_objects)
  list(APPEND ropewalk_object_files $<TARGET_OBJECTS:${objects}>)
endforeach()

set(ROPEWALK_LIBRARIES)
if(NOT ropewalk_objects)
  message(WARNING "ropewalk: no sources in simd/ and runtime/ yet: no library")
  return()
endif()

foreach(kind shared static)
  string(TOUPPER ${kind} upper)
  if(NOT ROPEWALK_BUILD_${upper})
    continue()
  endif()
  set(name ropewalk_${kind})
  add_library(${name} ${upper} ${ropewalk_object_files})
  add_library(ropewalk::${name} ALIAS ${name})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${name} PRIVATE Threads::Threads)
  if(ROPEWALK_WITH_TBB)
    target_link_libraries(${name} PRIVATE TBB::tbb)
  endif()
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ropewalk
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    SOVERSION ${ROPEWALK_SOVERSION})
  list(APPEND ROPEWALK_LIBRARIES ${name})
endforeach()
if(TARGET ropewalk_static)
  target_compile_definitions(ropewalk_static INTERFACE ROPEWALK_STATIC)  # nothing to import: export.hpp
endif()
if(TARGET ropewalk_shared)
  # Templates of std have default visibility whatever we say; the map keeps them, and all else that is not ropewalk's, inside.
  target_link_options(ropewalk_shared PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/tools/cmake/ropewalk.map")
  set_target_properties(ropewalk_shared PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/tools/cmake/ropewalk.map")
  if(NOT ROPEWALK_SANITIZE)
    target_link_options(ropewalk_shared PRIVATE -Wl,--no-undefined)
  endif()
  if(ROPEWALK_WITH_TBB)
    # TBB's workers sleep inside libtbb. A dlclose() that took libtbb away with us would unmap the code they return to: tests/packaging/unload
    # crashes without this. So the library stays in the process once loaded, and with it libtbb.
    target_link_options(ropewalk_shared PRIVATE -Wl,-z,nodelete)
  endif()
endif()

if(TARGET ropewalk_static AND (ROPEWALK_PREFER_STATIC OR NOT TARGET ropewalk_shared))
  add_library(ropewalk::ropewalk ALIAS ropewalk_static)
else()
  add_library(ropewalk::ropewalk ALIAS ropewalk_shared)
endif()
