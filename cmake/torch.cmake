find_package(Torch REQUIRED)

# For what calls torch and has no loops of its own. Torch's headers take about 20 s to parse, so they are precompiled,
# once, by ovq_ops, and the other targets take the file over: with the same code generation flags, or GCC refuses it, and
# the same optimisation, or GCC 12 may crash.
function(ovq_use_torch target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF DEFINE_SYMBOL "")
  target_compile_options(${target} PRIVATE -fPIC)
  ovq_optimize_as_caller(${target})
  if(target STREQUAL ovq_ops)
    target_precompile_headers(ovq_ops PRIVATE ${PROJECT_SOURCE_DIR}/ovq/ops/torch/torch.h)
  else()
    target_precompile_headers(${target} REUSE_FROM ovq_ops)
  endif()
  ovq_unite_sources(${target})
endfunction()
