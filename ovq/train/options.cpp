#include "ovq/train/options.h"

#include <algorithm>

#include "ovq/base/closest.h"
#include "ovq/models/fields.h"
#include "ovq/models/presets.h"
#include "ovq/tasks/mixture.h"

namespace ovq::train {
namespace {

template <class Visitor>
void visit(Visitor& field, RunOptions& o) {
  field("tokens_per_step", o.tokens_per_step, 0);
  field("steps", o.steps, 0);
  field("accumulate", o.accumulate, 1);
  field("learning_rate", o.learning_rate);
  field("min_learning_rate", o.min_learning_rate);
  field("warmup", o.warmup, 0);
  field("beta1", o.adamw.beta1);
  field("beta2", o.adamw.beta2);
  field("eps", o.adamw.eps);
  field("weight_decay", o.adamw.weight_decay);
  field("clip", o.clip);
  auto seed = static_cast<int64_t>(o.seed);
  field("seed", seed, 0);
  o.seed = static_cast<uint64_t>(seed);
  field("eval_every", o.eval_every, 0);
  field("eval_rows", o.eval_rows, 1);
  field("target", o.target);
  field("checkpoint_every", o.checkpoint_every, 1);
  field("keep", o.keep, 1);
}

// A pattern at this scale, or a preset by its full name.
std::string preset_of(const RunOptions& options) {
  if (options.model.find('/') != std::string::npos) return options.model;
  if (options.scale != "paper") {
    const std::vector<std::string> names = models::pattern_names();
    if (std::find(names.begin(), names.end(), options.model) == names.end())
      throw std::invalid_argument(unknown_name("model", options.model, names));
    return options.scale + "/" + options.model;
  }
  const std::string family = options.task == "text" ? "text" : options.task == "icl" ? "icl" : "recall";
  const std::string name = "paper/" + family + "-" + options.model;
  return options.model == "sw-vq" && family != "text" ? name + "-1k" : name;
}

struct Budget {
  int64_t steps, tokens_per_step;
};
Budget budget_of(const std::string& scale) {
  return scale == "tiny" ? Budget{1200, 4096} : scale == "small" ? Budget{1500, 4096} : Budget{100'000, 65'536};
}

}  // namespace

json to_json(const RunOptions& options) {
  json object = {{"task", options.task},
                 {"model", options.model},
                 {"scale", options.scale},
                 {"task_options", options.task_options},
                 {"model_options", options.model_options},
                 {"lengths", options.lengths}};
  RunOptions copy = options;
  models::FieldWriter writer(object);
  visit(writer, copy);
  return object;
}

RunOptions run_options_from_json(const json& object, const RunOptions& defaults) {
  RunOptions options = defaults;
  models::FieldReader reader(object, "");
  const auto text = [&](const char* name, std::string& value) {
    const json* field = reader.find(name);
    if (field == nullptr) return;
    if (!field->is_string()) reader.fail(name, *field, "a name");
    value = field->get<std::string>();
  };
  text("task", options.task);
  text("model", options.model);
  text("scale", options.scale);
  for (const auto& [name, value] :
       {std::pair{"task_options", &options.task_options}, {"model_options", &options.model_options}}) {
    const json* field = reader.find(name);
    if (field == nullptr) continue;
    if (!field->is_object()) reader.fail(name, *field, "an object");
    *value = *field;
  }
  if (const json* lengths = reader.find("lengths")) {
    const bool good = lengths->is_array() && std::all_of(lengths->begin(), lengths->end(), [](const json& length) {
                        return length.is_number_integer() && length.get<int64_t>() >= 1;
                      });
    if (!good) reader.fail("lengths", *lengths, "a list of integers of at least 1");
    options.lengths = lengths->get<std::vector<int64_t>>();
  }
  visit(reader, options);
  reader.finish();
  return options;
}

RunOptions resolved(RunOptions options) {
  const tasks::Preset task = tasks::preset(options.task, options.scale);
  options.task_options["scale"] = options.scale;
  if (options.lengths.empty()) options.lengths = task.train_lengths;
  const models::ModelPreset preset = models::model_preset(preset_of(options));
  if (options.learning_rate == 0) options.learning_rate = preset.learning_rate;
  if (options.min_learning_rate < 0) options.min_learning_rate = preset.min_learning_rate;
  const Budget budget = budget_of(options.scale);
  if (options.steps == 0) options.steps = budget.steps;
  if (options.tokens_per_step == 0) options.tokens_per_step = budget.tokens_per_step;
  return options;
}

std::unique_ptr<tasks::Task> make_task(const RunOptions& options) {
  return tasks::make_task(options.task, options.task_options);
}

void check_task(const tasks::Task& task, const RunOptions& options) {
  tasks::step_shapes(task, {options.lengths, options.tokens_per_step});
  for (const int64_t length : options.lengths) task.sample({.rows = 1, .length = length});
  const int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  task.sample({.rows = 1, .length = longest, .split = tasks::Split::test});
}

models::ModelConfig model_config(const RunOptions& options, int64_t vocab) {
  json config = models::to_json(models::model_preset(preset_of(options)).config);
  config["vocab_size"] = vocab;
  config.merge_patch(options.model_options);
  return models::config_from_json(config);
}

Schedule schedule_of(const RunOptions& options) {
  return {options.learning_rate, options.min_learning_rate, options.warmup, options.steps};
}

}  // namespace ovq::train
