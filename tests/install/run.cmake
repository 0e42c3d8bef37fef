# Installs BUILD_DIR to a temporary prefix, then configures, builds and runs the examples in C++ against it.
set(work ${BUILD_DIR}/install_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(result)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${work}/prefix)
if(EXISTS ${work}/prefix/bin/ovq)
  run(${work}/prefix/bin/ovq --version)
endif()
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR}/../../examples/cpp -B ${work}/examples
  -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/examples --config ${CONFIG})
run(${work}/examples/stream)
if(EXISTS ${work}/prefix/include/ovq/models)
  run(${work}/examples/train_layer)
  run(${work}/examples/generate)
endif()
