option(OVQ_UNITY "Compile the sources of a target together, as one or two units" ON)

# Most of the time a source takes is its headers': 6 to 9 s before any code is generated for one that uses torch, even
# with the headers precompiled, and several for GoogleTest or JSON. So the sources of a target are one unit, or two where
# there are many, for two cores.
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

# For programs that wait for the libraries, not for code of their own: built in two thirds of the time.
function(ovq_optimize_as_caller target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()
