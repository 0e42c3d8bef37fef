# Tests of tests/train.
add_executable(train_test train/adamw_test.cpp train/train_test.cpp)
target_link_libraries(train_test PRIVATE ovq::train GTest::gtest GTest::gtest_main)
ovq_reuse_torch_headers(train_test)
gtest_discover_tests(train_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600)

if(OVQ_BUILD_CLI)
  add_test(NAME cli.kill_resume
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/kill-resume.sh --ovq $<TARGET_FILE:ovq> --kills 6 --steps 40)
  add_test(NAME cli.errors COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/train/cli_errors.sh $<TARGET_FILE:ovq>)
  set_tests_properties(cli.kill_resume cli.errors PROPERTIES TIMEOUT 300 ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
endif()
