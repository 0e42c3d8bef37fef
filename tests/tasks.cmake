# Tests of tests/tasks.
if(TARGET ovq_tasks)
  list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
  find_package(SentencePiece REQUIRED)
  add_executable(tasks_test
    tasks/choice_test.cpp
    tasks/description_test.cpp
    tasks/endings_test.cpp
    tasks/icl_test.cpp
    tasks/mixture_test.cpp
    tasks/mqar_test.cpp
    tasks/recall_test.cpp
    tasks/registry_test.cpp
    tasks/render_test.cpp
    tasks/task_test.cpp
    tasks/text_test.cpp)
  target_compile_options(tasks_test PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  target_link_libraries(tasks_test PRIVATE ovq::tasks SentencePiece::Train GTest::gtest_main)
  ovq_unite_sources(tasks_test)
  ovq_optimize_as_caller(tasks_test)
  ovq_leave_unsanitized(tasks_test)
  gtest_discover_tests(tasks_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endif()
