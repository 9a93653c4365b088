# The installed package: find_package(plumb) gives plumb::model.
include(CMakePackageConfigHelpers)

install(TARGETS plumb_model EXPORT plumb_targets)
install(TARGETS plumb_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY model/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/plumb/model FILES_MATCHING PATTERN "*.h")
install(DIRECTORY topologies experiments DESTINATION ${CMAKE_INSTALL_DATADIR}/plumb)
install(EXPORT plumb_targets NAMESPACE plumb:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb
        FILE plumb-targets.cmake)
configure_package_config_file(cmake/plumb-config.cmake.in ${CMAKE_BINARY_DIR}/plumb-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/plumb-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/plumb-config.cmake ${CMAKE_BINARY_DIR}/plumb-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
