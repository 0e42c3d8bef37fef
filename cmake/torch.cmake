find_package(Torch REQUIRED)

# Torch's headers take about 20 s to parse, so they are precompiled: once by ovq_ops, whose file the other libraries take
# over, and once by ovq_torch_callers for the program, its benchmarks and the tests. GCC accepts a precompiled header
# only with the same code generation flags.
function(ovq_reuse_torch_headers target)
  cmake_parse_arguments(PARSE_ARGV 1 arg CALLER "" "")
  ovq_match_torch_headers(${target})
  if(arg_CALLER)
    ovq_optimize_as_caller(${target})
    target_precompile_headers(${target} REUSE_FROM ovq_torch_callers)
  else()
    target_precompile_headers(${target} REUSE_FROM ovq_ops)
  endif()
  ovq_unite_sources(${target})
endfunction()

function(ovq_match_torch_headers target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF DEFINE_SYMBOL "")
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()

# After ovq_ops is known.
function(ovq_add_torch_callers)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/torch_callers.cpp CONTENT "")
  add_library(ovq_torch_callers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/generated/torch_callers.cpp)
  target_link_libraries(ovq_torch_callers PRIVATE ovq::ops)
  target_precompile_headers(ovq_torch_callers PRIVATE ${PROJECT_SOURCE_DIR}/ovq/ops/torch.h)
  ovq_match_torch_headers(ovq_torch_callers)
  ovq_optimize_as_caller(ovq_torch_callers)
endfunction()
