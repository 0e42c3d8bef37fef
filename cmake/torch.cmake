find_package(Torch REQUIRED)

# Torch's headers take about 20 s to parse: ovq_ops precompiles them once, and every other target that needs them takes
# that file over. GCC accepts it only with the same code generation flags.
function(ovq_reuse_torch_headers target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF DEFINE_SYMBOL "")
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM ovq_ops)
  ovq_unite_sources(${target})
endfunction()
