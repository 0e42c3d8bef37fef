option(OVQ_UNITY "Compile the sources of a target together, as one unit" ON)

# Most of the time a source takes is its headers': 6 to 9 s before any code is generated for one that uses torch, even
# with the headers precompiled, and several for GoogleTest or JSON. So the sources of a target are one unit.
function(ovq_unite_sources target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(OVQ_UNITY AND count GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

# For code that mostly waits for what it calls, torch or the kernels: built in two thirds of the time.
function(ovq_optimize_as_caller target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()
