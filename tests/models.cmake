# Tests of tests/models.
add_executable(models_test models/config_test.cpp models/inspect_test.cpp models/language_model_test.cpp)
target_link_libraries(models_test PRIVATE ovq::models GTest::gtest GTest::gtest_main)
ovq_reuse_torch_headers(models_test)
gtest_discover_tests(models_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600)
