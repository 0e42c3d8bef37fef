# Installs BUILD_DIR to a temporary prefix, then configures, builds and runs the consumer against it. The consumer is also
# the example of the README.
set(work ${BUILD_DIR}/install_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(result)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(READ ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp example)
file(READ ${CMAKE_CURRENT_LIST_DIR}/../../README.md readme)
string(FIND "${readme}" "${example}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not show tests/install/consumer/main.cpp as it is")
endif()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${work}/prefix)
if(EXISTS ${work}/prefix/bin/ovq)
  run(${work}/prefix/bin/ovq --version)
endif()
function(build_and_run consumer)
  run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR}/${consumer} -B ${work}/${consumer}
    -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${work}/prefix)
  run(${CMAKE_COMMAND} --build ${work}/${consumer} --config ${CONFIG})
  run(${work}/${consumer}/${consumer})
endfunction()
build_and_run(consumer)
if(EXISTS ${work}/prefix/include/ovq/models)
  build_and_run(torch_consumer)
endif()
