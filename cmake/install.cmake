# Installs the libraries, their headers and a package configuration: find_package(ovq) then gives ovq::kernels.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(OVQ_BUILD_CLI)
  install(TARGETS ovq RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(OVQ_BUILD_TORCH)
    install(TARGETS ovq_ops LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(ovq PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ovq)
install(EXPORT ovqTargets NAMESPACE ovq:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ovqConfig.cmake.in ${PROJECT_BINARY_DIR}/ovqConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ovqConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ovqConfig.cmake ${PROJECT_BINARY_DIR}/ovqConfigVersion.cmake DESTINATION ${package_dir})
