# Tests of tests/nn.

function(ovq_add_nn_test name)
  list(TRANSFORM ARGN PREPEND nn/ OUTPUT_VARIABLE sources)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ovq::nn GTest::gtest GTest::gtest_main)
  ovq_reuse_torch_headers(${name})
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600)
endfunction()

ovq_add_nn_test(layers_test layers_test.cpp)
ovq_add_nn_test(recurrences_test recurrences_test.cpp)
ovq_add_nn_test(linear_mixers_test linear_mixers_test.cpp)
ovq_add_nn_test(attention_mixers_test attention_mixers_test.cpp)
ovq_add_nn_test(vq_test vq_test.cpp)
