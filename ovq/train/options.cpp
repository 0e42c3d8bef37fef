#include "ovq/train/options.h"

#include <algorithm>

#include "ovq/base/closest.h"
#include "ovq/base/json_fields.h"
#include "ovq/models/presets.h"
#include "ovq/tasks/mixture.h"
#include "ovq/train/keep.h"

namespace ovq::train {
namespace {

// A pattern of layers at this scale, or a preset by its full name.
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
  return scale == "tiny" ? Budget{720, 8192} : scale == "small" ? Budget{1800, 8192} : Budget{100'000, 65'536};
}

std::vector<double> keeps_from_json(const FieldReader& reader, const json& list) {
  const bool good = list.is_array() && std::all_of(list.begin(), list.end(), [](const json& keep) {
                      return keep.is_number() && keep.get<double>() > 0 && keep.get<double>() <= 1;
                    });
  if (!good) reader.fail("eval_keep", list, "a list of numbers above 0 and at most 1");
  return list.get<std::vector<double>>();
}

// A directory, or the object that run.json stores for one.
InitialWeights init_from_json(const FieldReader& reader, const json& field) {
  if (field.is_string() && !field.get<std::string>().empty()) return {.path = field.get<std::string>()};
  const bool good = field.is_object() && field.size() == 2 && field.value("path", json()).is_string() &&
                    field.value("sha256", json()).is_string();
  if (!good) reader.fail("init_from", field, "a directory");
  return {.path = field["path"], .sha256 = field["sha256"]};
}

// The steps of all phases together. The run's own steps must equal them if they are given.
int64_t steps_of_phases(const RunOptions& options) {
  int64_t steps = 0;
  for (const Phase& phase : options.phases) steps += phase.steps;
  if (options.steps != 0 && options.steps != steps)
    throw std::invalid_argument("[config] steps is " + std::to_string(options.steps) + "; the phases have " +
                                std::to_string(steps) + ": leave steps out");
  return steps;
}

void resolve_phases(RunOptions& options) {
  options.steps = steps_of_phases(options);
  for (Phase& phase : options.phases) {
    if (phase.lengths.empty()) phase.lengths = options.lengths;
    if (phase.learning_rate == 0) phase.learning_rate = options.learning_rate;
    if (phase.min_learning_rate < 0) phase.min_learning_rate = options.min_learning_rate;
    if (phase.warmup < 0) phase.warmup = options.warmup;
    if (phase.tokens_per_step == 0) phase.tokens_per_step = options.tokens_per_step;
  }
}

void check_dictionary(const RunOptions& options, const models::ModelConfig& config) {
  if (dictionary_of(config) != nullptr) return;
  const std::string lacks = "; " + options.model + " has no OVQ-attention";
  for (size_t i = 0; i < options.phases.size(); ++i) {
    if (options.phases[i].centroids)
      throw std::invalid_argument("[config] phases[" + std::to_string(i) + "].centroids is " +
                                  std::to_string(*options.phases[i].centroids) + lacks);
  }
  if (!options.eval_keep.empty())
    throw std::invalid_argument("[config] eval_keep is " + json(options.eval_keep).dump() + lacks);
}

}  // namespace

json to_json(const RunOptions& options) {
  json object = {
      {"task_options", options.task_options}, {"model_options", options.model_options}, {"lengths", options.lengths}};
  if (!options.eval_keep.empty()) object["eval_keep"] = options.eval_keep;
  if (!options.phases.empty()) object["phases"] = to_json(options.phases);
  if (!options.init_from.path.empty())
    object["init_from"] = {{"path", options.init_from.path}, {"sha256", options.init_from.sha256}};
  object.update(fields_to_json(options));
  return object;
}

json to_comparable_json(const RunOptions& options) {
  json object = to_json(options);
  if (!options.model_options.contains("mixers")) return object;
  try {
    const models::ModelConfig preset = models::model_preset(preset_of(options)).config;
    object["model_options"] = models::without_retired_fields(options.model_options, preset);
  } catch (const std::invalid_argument&) {
    // this version does not know the model: compare its options as they are
  }
  return object;
}

RunOptions run_options_from_json(const json& object, const RunOptions& defaults) {
  RunOptions options = defaults;
  FieldReader reader(object, "");
  for (const auto& [name, value] :
       {std::pair{"task_options", &options.task_options}, {"model_options", &options.model_options}}) {
    const json* field = reader.find(name);
    if (field == nullptr) continue;
    if (!field->is_object()) reader.fail(name, *field, "an object");
    *value = *field;
  }
  read_lengths(reader, options.lengths, 0);
  if (const json* keeps = reader.find("eval_keep")) options.eval_keep = keeps_from_json(reader, *keeps);
  if (const json* phases = reader.find("phases")) options.phases = phases_from_json(*phases);
  if (const json* weights = reader.find("init_from")) options.init_from = init_from_json(reader, *weights);
  reader.read(options);
  reader.finish();
  if (!options.phases.empty()) steps_of_phases(options);
  return options;
}

RunOptions with_absolute_paths(RunOptions options) {
  if (options.task != "text") return options;
  for (const char* name : {"train", "test", "tokenizer"}) {
    const std::string path = options.task_options.value(name, json()).is_string() ? options.task_options[name] : "";
    const bool file = !path.empty() && (std::string_view(name) != "tokenizer" || path != "bytes");
    if (file) options.task_options[name] = std::filesystem::absolute(path).lexically_normal().string();
  }
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
  if (options.tokens_per_step == 0) options.tokens_per_step = budget.tokens_per_step;
  if (!options.phases.empty())
    resolve_phases(options);
  else if (options.steps == 0)
    options.steps = budget.steps;
  return options;
}

std::unique_ptr<tasks::Task> make_task(const RunOptions& options) {
  return tasks::make_task(options.task, options.task_options);
}

void check_task(const tasks::Task& task, const RunOptions& options) {
  const std::vector<Phase> phases = phases_of(options);
  for (size_t i = 0; i < phases.size(); ++i) {
    try {
      tasks::step_shapes(task, {phases[i].lengths, phases[i].tokens_per_step});
      for (const int64_t length : phases[i].lengths) task.sample({.rows = 1, .length = length});
      task.sample({.rows = 1, .length = phases[i].longest(), .split = tasks::Split::test});
    } catch (const std::invalid_argument& error) {
      if (options.phases.empty()) throw;
      throw std::invalid_argument("phases[" + std::to_string(i) + "]: " + error.what());
    }
  }
}

models::ModelConfig model_config(const RunOptions& options, int64_t vocab) {
  json config = models::to_json(models::model_preset(preset_of(options)).config);
  config["vocab_size"] = vocab;
  config.merge_patch(options.model_options);
  models::ModelConfig made = models::config_from_json(config);
  check_dictionary(options, made);
  return made;
}

std::vector<Phase> phases_of(const RunOptions& options) {
  if (!options.phases.empty()) return options.phases;
  return {{.steps = options.steps,
           .lengths = options.lengths,
           .learning_rate = options.learning_rate,
           .min_learning_rate = options.min_learning_rate,
           .warmup = options.warmup,
           .tokens_per_step = options.tokens_per_step}};
}

}  // namespace ovq::train
