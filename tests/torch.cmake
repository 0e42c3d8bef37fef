# Tests that use torch. Each program is one test: starting it, and with it torch, takes longer than most of its parts.
# Tests with a COST start before the many short ones, so that no core waits for the last of them.
function(ovq_add_torch_test name library)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${library} GTest::gtest GTest::gtest_main)
  ovq_use_torch(${name})
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE TIMEOUT 600 COST 30)
endfunction()

ovq_add_torch_test(ops_test ovq::ops
  attention/torch_test.cpp gated_mlp/torch_test.cpp norm/torch_test.cpp ops/strides_test.cpp ovq_attention/torch_test.cpp
  products/torch_stored_test.cpp products/torch_test.cpp projections/torch_test.cpp
  recurrence/torch_test.cpp rotary/torch_test.cpp short_convolution/torch_test.cpp vector_quantize/torch_test.cpp)
ovq_add_torch_test(nn_test ovq::nn nn/attention_mixers_test.cpp nn/layers_test.cpp nn/linear_mixers_test.cpp
  nn/mixers_test.cpp nn/vq_test.cpp)
ovq_add_torch_test(models_test ovq::models
  models/config_test.cpp models/inspect_test.cpp models/language_model_test.cpp models/sampling_test.cpp
  models/session_test.cpp models/storage_test.cpp)
target_link_libraries(models_test PRIVATE ovq::text)
ovq_add_torch_test(distributed_test ovq::distributed
  distributed/gradient_buckets_test.cpp distributed/rendezvous_test.cpp distributed/process_group_test.cpp)
ovq_add_torch_test(train_test ovq::train
  train/adamw_test.cpp train/choice_scores_test.cpp train/comparison_test.cpp train/gradient_sums_test.cpp
  train/identifier_loss_test.cpp train/initial_weights_test.cpp
  train/keep_test.cpp train/phases_test.cpp train/profile_test.cpp train/replicas_test.cpp train/run_test.cpp train/sweep_test.cpp
  train/text_loss_test.cpp train/train_test.cpp)
ovq_add_torch_test(experiments_test ovq::experiments
  experiments/child_process_test.cpp experiments/experiment_set_test.cpp experiments/plan_test.cpp
  experiments/result_tables_test.cpp)
target_compile_definitions(experiments_test PRIVATE OVQ_EXPERIMENTS="${PROJECT_SOURCE_DIR}/experiments")
ovq_add_torch_test(report_test ovq::report report/claims_test.cpp report/live_test.cpp)
target_compile_definitions(report_test PRIVATE OVQ_EXPERIMENTS="${PROJECT_SOURCE_DIR}/experiments"
  OVQ_CLAIMS="${PROJECT_SOURCE_DIR}/experiments/report/claims.json")
ovq_add_torch_test(train_memory_test ovq::train train/memory_test.cpp)  # defines its own malloc

if(OVQ_BUILD_CLI)
  add_test(NAME cli.kill_resume
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/kill-resume.sh --ovq $<TARGET_FILE:ovq> --kills 6 --steps 40)
  add_test(NAME cli.processes COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/cli/processes.py $<TARGET_FILE:ovq>)
  set_tests_properties(cli.processes PROPERTIES TIMEOUT 600 COST 60)
  add_test(NAME cli.errors COMMAND ${CMAKE_CURRENT_LIST_DIR}/cli/errors.sh $<TARGET_FILE:ovq>)
  add_test(NAME experiments.reproduce COMMAND ${CMAKE_CURRENT_LIST_DIR}/experiments/reproduce.sh $<TARGET_FILE:ovq>)
  add_test(NAME cli.endings
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/cli/endings.py $<TARGET_FILE:ovq> ${PROJECT_SOURCE_DIR})
  set_tests_properties(cli.endings PROPERTIES TIMEOUT 600 COST 40 ENVIRONMENT "OMP_WAIT_POLICY=PASSIVE;PYTHONDONTWRITEBYTECODE=1")
  add_test(NAME cli.files COMMAND ${CMAKE_CURRENT_LIST_DIR}/cli/files.sh $<TARGET_FILE:ovq>)
  set_tests_properties(cli.files PROPERTIES TIMEOUT 300 COST 15 ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
  add_test(NAME cli.text COMMAND ${CMAKE_CURRENT_LIST_DIR}/cli/text.sh $<TARGET_FILE:ovq>)
  add_test(NAME report.page
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/report/page.py $<TARGET_FILE:ovq> ${PROJECT_SOURCE_DIR})
  add_test(NAME cli.completion COMMAND ${CMAKE_CURRENT_LIST_DIR}/cli/completion.sh $<TARGET_FILE:ovq>)
  set_tests_properties(cli.kill_resume cli.errors cli.text experiments.reproduce report.page PROPERTIES TIMEOUT 900 COST 15 ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
endif()

if(OVQ_BUILD_CLI)
  add_test(NAME cli.constant_memory COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/cli/constant_memory.py
    $<TARGET_FILE:ovq> --tokens 8000)
  add_test(NAME cli.terminal
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/cli/terminal.py $<TARGET_FILE:ovq>)
  set_tests_properties(cli.constant_memory cli.terminal PROPERTIES TIMEOUT 300 COST 20
    ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;OMP_WAIT_POLICY=PASSIVE;PYTHONDONTWRITEBYTECODE=1")
endif()
add_test(NAME python COMMAND /usr/bin/python3 -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/python)
add_test(NAME example.python.drop_in COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/examples/python/drop_in.py)
add_test(NAME example.python.generate COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/examples/python/generate.py)
add_test(NAME example.python.ddp COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/examples/python/ddp.py)
add_test(NAME example.readme
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/markdown.py --run ${PROJECT_SOURCE_DIR}/README.md)
set_tests_properties(python example.python.drop_in example.python.generate example.python.ddp example.readme PROPERTIES TIMEOUT 900 COST 20
  ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;OMP_WAIT_POLICY=PASSIVE;PYTHONDONTWRITEBYTECODE=1")
