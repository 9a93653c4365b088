# Installs the build into a fresh prefix, builds the consumers against it and runs them.
# cmake -DBUILD=... -DWORK=... -DSOURCE=... -DCOMPONENTS=model,sim -P run.cmake
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${output}")
  endif()
endfunction()
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_CXX_FLAGS=${FLAGS} -DCOMPONENTS=${COMPONENTS})
run(${CMAKE_COMMAND} --build ${WORK}/build)
string(REPLACE "," ";" components ${COMPONENTS})
foreach(component ${components})
  run(${WORK}/build/${component}_consumer)
endforeach()
run(${WORK}/prefix/bin/plumb --version)
