#include "ovq/tasks/description.h"

namespace ovq::tasks {

int64_t TaskDescription::vocab() const { return make_task(name, options)->vocab(); }

TaskDescription describe_task(const std::string& name, const nlohmann::json& options) {
  const Preset sizes = preset(name, scale_of(name, options));
  return {.name = name,
          .options = options,
          .metric = metric_of(name),
          .train_lengths = sizes.train_lengths,
          .evaluations = sizes.evaluations};
}

const char* metric_name(Metric metric) { return metric == Metric::accuracy ? "accuracy" : "loss"; }

}  // namespace ovq::tasks
