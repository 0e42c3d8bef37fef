# Tests of tests/files: programs without torch, so that they run sanitized too.
add_executable(files_test
  files/checksum_test.cpp
  files/crash_test.cpp
  files/durable_test.cpp
  files/numbered_directories_test.cpp
  files/safetensors_test.cpp
  files/safetensors_hostile_test.cpp
  files/sha256_test.cpp)
target_link_libraries(files_test PRIVATE ovq::files GTest::gtest GTest::gtest_main)
ovq_unite_sources(files_test)
ovq_optimize_as_caller(files_test)
ovq_leave_unsanitized(files_test)
add_executable(files_memory_test files/memory_test.cpp)  # has an operator new of its own
target_link_libraries(files_memory_test PRIVATE ovq::files GTest::gtest GTest::gtest_main)
foreach(name files_test files_memory_test)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endforeach()

# A reader that shares no code with ours.
add_executable(files_write_example files/write_example.cpp)
target_link_libraries(files_write_example PRIVATE ovq::files)
add_test(NAME files.read_back COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/files/read_back.py
  $<TARGET_FILE:files_write_example> ${PROJECT_BINARY_DIR}/tests/read_back.safetensors)
set_tests_properties(files.read_back PROPERTIES TIMEOUT 120 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
