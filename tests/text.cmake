# Tests of tests/text.
if(TARGET ovq_text)
  list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
  find_package(SentencePiece REQUIRED)
  add_executable(text_test
    text/chat_template_test.cpp
    text/json_tokenizer_test.cpp
    text/regex_test.cpp
    text/text_stream_test.cpp
    text/token_file_test.cpp
    text/tokenizer_test.cpp
    text/tokenizer_training_test.cpp
    text/unicode_test.cpp
    text/utf8_test.cpp)
  target_compile_definitions(text_test PRIVATE OVQ_SMALL_TOKENIZERS="${CMAKE_CURRENT_LIST_DIR}/text/tokenizers")
  target_compile_options(text_test PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  target_link_libraries(text_test PRIVATE ovq::text SentencePiece::Train GTest::gtest_main)
  ovq_unite_sources(text_test)
  ovq_optimize_as_caller(text_test)
  ovq_leave_unsanitized(text_test)
  # Compares with other programs; see scripts/check-tokenizers.sh.
  add_executable(tokenizer_check text/tokenizer_check.cpp)
  target_link_libraries(tokenizer_check PRIVATE ovq::text)
  gtest_discover_tests(text_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endif()
