# Tests of tests/base: programs without torch, so that they also run sanitized.
add_executable(base_test
  base/blas_test.cpp
  base/checksum_test.cpp
  base/closest_test.cpp
  base/format_test.cpp
  base/json_fields_test.cpp
  base/json_lines_test.cpp
  base/random_test.cpp
  base/table_test.cpp
  base/files/crash_test.cpp
  base/files/durable_test.cpp
  base/files/fault_test.cpp
  base/files/numbered_directories_test.cpp
  base/files/safetensors_test.cpp
  base/files/safetensors_hostile_test.cpp
  base/files/sha256_test.cpp)
target_link_libraries(base_test PRIVATE ovq::files GTest::gtest GTest::gtest_main)
ovq_unite_sources(base_test)
ovq_optimize_as_caller(base_test)
ovq_leave_unsanitized(base_test)
add_executable(files_memory_test base/files/memory_test.cpp)  # defines its own operator new
target_link_libraries(files_memory_test PRIVATE ovq::files GTest::gtest GTest::gtest_main)
foreach(name base_test files_memory_test)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endforeach()

# A reader that shares no code with the library's.
add_executable(files_write_example base/files/write_example.cpp)
target_link_libraries(files_write_example PRIVATE ovq::files)
add_test(NAME files.read_back COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/base/files/read_back.py
  ${PROJECT_BINARY_DIR}/tests/read_back.safetensors ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:files_write_example>)
set_tests_properties(files.read_back PROPERTIES TIMEOUT 120 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

add_test(NAME includes_point_down
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/includes_point_down.py ${PROJECT_SOURCE_DIR})
set_tests_properties(includes_point_down PROPERTIES ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
add_test(NAME markdown COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/markdown.py ${PROJECT_SOURCE_DIR})
add_test(NAME docs.api COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/scripts/api-reference.py --check)
set_tests_properties(markdown docs.api PROPERTIES ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
