# Finds SimGrid's headers and shared library (linked dynamically: LGPL). Gives SimGrid::SimGrid, SimGrid_FOUND
# and SimGrid_VERSION. SimGrid_ROOT or CMAKE_PREFIX_PATH point to one outside the system.
find_path(SimGrid_INCLUDE_DIR simgrid/s4u.hpp)
find_library(SimGrid_LIBRARY simgrid)
find_path(SimGrid_BOOST_INCLUDE_DIR boost/intrusive_ptr.hpp)  # SimGrid's headers include Boost's
if(SimGrid_INCLUDE_DIR)
  file(STRINGS "${SimGrid_INCLUDE_DIR}/simgrid/version.h" _lines REGEX "define SIMGRID_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _parts "${_lines}")
  list(JOIN _parts "." SimGrid_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SimGrid
  REQUIRED_VARS SimGrid_LIBRARY SimGrid_INCLUDE_DIR SimGrid_BOOST_INCLUDE_DIR VERSION_VAR SimGrid_VERSION)
mark_as_advanced(SimGrid_INCLUDE_DIR SimGrid_LIBRARY SimGrid_BOOST_INCLUDE_DIR)
if(SimGrid_FOUND AND NOT TARGET SimGrid::SimGrid)
  add_library(SimGrid::SimGrid SHARED IMPORTED)
  set_target_properties(SimGrid::SimGrid PROPERTIES IMPORTED_LOCATION "${SimGrid_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${SimGrid_INCLUDE_DIR};${SimGrid_BOOST_INCLUDE_DIR}")
endif()
