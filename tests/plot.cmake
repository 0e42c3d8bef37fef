# Tests of tests/plot: no torch.
add_executable(plot_test plot/axis_test.cpp plot/figure_test.cpp plot/terminal_test.cpp)
target_link_libraries(plot_test PRIVATE ovq::plot GTest::gtest GTest::gtest_main)
ovq_unite_sources(plot_test)
ovq_optimize_as_caller(plot_test)
gtest_discover_tests(plot_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
