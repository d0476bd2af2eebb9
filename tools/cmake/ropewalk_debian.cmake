# Debian packages, one for each component: cpack, or cmake --workflow --preset debian. CMAKE_INSTALL_PREFIX is /usr, with which GNUInstallDirs knows
# Debian's folder of the architecture.
set(ROPEWALK_DEBIAN_PACKAGES ON)  # for the tests
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ropewalk)
set(CPACK_PACKAGE_CONTACT "ropewalk maintainers <ropewalk@localhost>")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime development tools)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # what packages that are linked to the library depend on
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(runtime_package libropewalk${ROPEWALK_SOVERSION})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${runtime_package})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libropewalk-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${runtime_package} (= ${PROJECT_VERSION})")
if(ROPEWALK_WITH_TBB)  # for the static library and <ropewalk/tbb.hpp>
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS libtbb-dev)
endif()
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ropewalk-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)

# Below the summary, which is the project's.
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "Shared library: operations on memory of the caller's, and a KV cache in
pages, for C and C++, with kernels for every instruction set of the
architecture; one is chosen when they run.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Development files: headers for C and C++, the static library, a CMake
package and a pkg-config file.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "Tools: which kernels run here, what a model does with positions, decoding
beside the memory bandwidth, checks against reference vectors.")

foreach(component runtime development tools)
  string(TOUPPER ${component} upper)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}" RENAME copyright
    COMPONENT ${component})
endforeach()
include(CPack)
