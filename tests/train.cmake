# Tests of tests/train.
function(ovq_add_train_test name)
  list(TRANSFORM ARGN PREPEND train/ OUTPUT_VARIABLE sources)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ovq::train GTest::gtest GTest::gtest_main)
  ovq_reuse_torch_headers(${name})
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600)
endfunction()
ovq_add_train_test(train_test adamw_test.cpp choice_scores_test.cpp profile_test.cpp train_test.cpp)
ovq_add_train_test(train_memory_test memory_test.cpp)  # has a malloc of its own

if(OVQ_BUILD_CLI)
  add_test(NAME cli.kill_resume
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/kill-resume.sh --ovq $<TARGET_FILE:ovq> --kills 6 --steps 40)
  add_test(NAME cli.errors COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/train/cli_errors.sh $<TARGET_FILE:ovq>)
  set_tests_properties(cli.kill_resume cli.errors PROPERTIES TIMEOUT 300 ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
endif()
