# Components: runtime (the shared library), development (headers, static library, CMake package, .pc file), tools (executables),
# benchmarks (those of bench/).
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ropewalk")

foreach(library IN LISTS ROPEWALK_LIBRARIES)  # ropewalk_shared, ropewalk_static: one export file each, read only if it is wanted
  install(TARGETS ${library} EXPORT ${library}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime NAMELINK_COMPONENT development
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
  install(EXPORT ${library} FILE ${library}-targets.cmake NAMESPACE ropewalk:: DESTINATION "${package_dir}" COMPONENT development)
  export(EXPORT ${library} FILE "${PROJECT_BINARY_DIR}/${library}-targets.cmake" NAMESPACE ropewalk::)
endforeach()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/ropewalk" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
foreach(kind TOOL BENCHMARK)
  get_property(targets GLOBAL PROPERTY ROPEWALK_${kind}_TARGETS)
  string(TOLOWER ${kind}s component)
  if(targets)
    install(TARGETS ${targets} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT ${component})
  endif()
endforeach()

if(TARGET ropewalk-decode)  # replays it if told nothing else
  install(FILES "${PROJECT_SOURCE_DIR}/tests/golden/trace/smollm2_l4_f32.safetensors" DESTINATION "${CMAKE_INSTALL_DATADIR}/ropewalk" COMPONENT tools)
endif()

configure_package_config_file(tools/cmake/ropewalkConfig.cmake.in "${PROJECT_BINARY_DIR}/ropewalkConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ropewalkConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)  # 0.x: a minor version may break the interface
install(FILES "${PROJECT_BINARY_DIR}/ropewalkConfig.cmake" "${PROJECT_BINARY_DIR}/ropewalkConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT development)

set(pc_private "-lstdc++ -lm -pthread")
if(ROPEWALK_WITH_TBB)  # not Requires.private: users of the shared library would need tbb.pc for --cflags
  string(PREPEND pc_private "-ltbb ")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()  # relative to the file itself: the package may be moved
  file(RELATIVE_PATH pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
  set(pc_prefix "\${pcfiledir}/${pc_up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(pc_${dir} "${CMAKE_INSTALL_${dir}}")
  else()
    set(pc_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
configure_file(tools/cmake/ropewalk.pc.in ropewalk.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/ropewalk.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

find_program(ROPEWALK_DPKG dpkg)
if(PROJECT_IS_TOP_LEVEL AND ROPEWALK_DPKG AND CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND ROPEWALK_BUILD_SHARED AND ROPEWALK_BUILD_TOOLS)
  include(ropewalk_debian)
else()
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)
endif()
