# Installs the libraries, their headers and a package configuration: find_package(ovq) then gives ovq::kernels, and with
# COMPONENTS torch also ovq::ops, ovq::nn and ovq::models.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ovq)

if(OVQ_BUILD_TORCH)
  set(torch_libraries ovq_ops ovq_nn ovq_models)
  install(TARGETS ovq_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})  # which ovq_models loads
  foreach(library ops nn models)
    set_target_properties(ovq_${library} PROPERTIES EXPORT_NAME ${library})
  endforeach()
  set_target_properties(${torch_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${torch_libraries} EXPORT ovqTorchTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(layer text nn models)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/ovq/${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ovq/${layer}
      FILES_MATCHING PATTERN "*.h")
  endforeach()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/ovq/ops/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ovq/ops
    FILES_MATCHING PATTERN "torch*.h" PATTERN "torch/*.h")
  install(EXPORT ovqTorchTargets NAMESPACE ovq:: DESTINATION ${package_dir})
endif()

if(OVQ_BUILD_CLI)
  install(TARGETS ovq RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/experiments DESTINATION ${CMAKE_INSTALL_DATADIR}/ovq)
  if(OVQ_BUILD_TORCH)
    set_target_properties(ovq PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()

install(EXPORT ovqTargets NAMESPACE ovq:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ovqConfig.cmake.in ${PROJECT_BINARY_DIR}/ovqConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ovqConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ovqConfig.cmake ${PROJECT_BINARY_DIR}/ovqConfigVersion.cmake DESTINATION ${package_dir})
