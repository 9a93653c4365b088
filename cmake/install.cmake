# The installed package: find_package(plumb) gives plumb::model, plumb::sim where the simulator was built, and
# plumb::simgrid where the consumer has SimGrid, too.
include(CMakePackageConfigHelpers)

set(_config ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
set(_headers ${CMAKE_INSTALL_INCLUDEDIR}/plumb)
install(TARGETS plumb_model EXPORT plumb_targets)
install(DIRECTORY model/ DESTINATION ${_headers}/model FILES_MATCHING PATTERN "*.h")
if(TARGET plumb_sim)
  install(TARGETS plumb_sim EXPORT plumb_targets)
  install(DIRECTORY sim/ DESTINATION ${_headers}/sim FILES_MATCHING PATTERN "*.h" PATTERN "simgrid" EXCLUDE)
endif()
if(TARGET plumb_simgrid)
  # An export of its own: who lacks SimGrid can use the rest.
  install(TARGETS plumb_simgrid EXPORT plumb_simgrid_targets)
  install(DIRECTORY sim/simgrid/ DESTINATION ${_headers}/sim/simgrid
          FILES_MATCHING PATTERN "*.h" PATTERN "compat.h" EXCLUDE)
  install(EXPORT plumb_simgrid_targets NAMESPACE plumb:: DESTINATION ${_config}
          FILE plumb-simgrid-targets.cmake)
  install(FILES cmake/FindSimGrid.cmake DESTINATION ${_config})
endif()
install(TARGETS plumb_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY topologies experiments DESTINATION ${CMAKE_INSTALL_DATADIR}/plumb)
install(EXPORT plumb_targets NAMESPACE plumb:: DESTINATION ${_config} FILE plumb-targets.cmake)
configure_package_config_file(cmake/plumb-config.cmake.in ${CMAKE_BINARY_DIR}/plumb-config.cmake
  INSTALL_DESTINATION ${_config})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/plumb-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/plumb-config.cmake ${CMAKE_BINARY_DIR}/plumb-config-version.cmake
        DESTINATION ${_config})
