# Tests of the torch ops: fused = composed of ATen calls = the kernels' plain loops.
add_executable(ops_test ops/attention_test.cpp ops/ovq_attention_test.cpp ops/strides_test.cpp)
target_include_directories(ops_test PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(ops_test PRIVATE ovq::ops GTest::gtest GTest::gtest_main)
ovq_reuse_torch_headers(ops_test)
gtest_discover_tests(ops_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600)
