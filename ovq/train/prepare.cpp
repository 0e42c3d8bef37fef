#include "ovq/train/prepare.h"

namespace ovq::train {

PreparedRun prepare_run(const json& options, const Warn& warn) {
  PreparedRun prepared{.options = with_absolute_paths(resolved(run_options_from_json(options)))};
  prepared.task = make_task(prepared.options);
  const models::ModelConfig config = model_config(prepared.options, prepared.task->vocab());
  check_task(*prepared.task, prepared.options);
  if (!prepared.options.init_from.path.empty()) {
    prepared.options.init_from = find_initial_weights(prepared.options.init_from, warn);
    load_initial_weights(*models::make_model(config, prepared.options.seed), prepared.options.init_from);
  }
  return prepared;
}

}  // namespace ovq::train
