find_package(Torch REQUIRED)
option(OVQ_UNITY "Compile the sources of a target that uses torch together, as one or two units" ON)

# Even with the headers precompiled, a file that uses torch takes 6 to 9 s before any code is generated. So the sources of
# a target are one unit, or two where there are many, for two cores.
function(ovq_unite_sources target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(NOT OVQ_UNITY OR count EQUAL 1)
    return()
  endif()
  set(batch ${count})
  if(count GREATER 6)
    math(EXPR batch "(${count} + 1) / 2")
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# Torch's headers take about 20 s to parse: ovq_ops precompiles them once, and every other target that needs them takes
# that file over. GCC accepts it only with the same code generation flags.
function(ovq_reuse_torch_headers target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF DEFINE_SYMBOL "")
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM ovq_ops)
  ovq_unite_sources(${target})
endfunction()
