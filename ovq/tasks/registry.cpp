#include "ovq/tasks/registry.h"

#include <algorithm>

#include "ovq/base/closest.h"
#include "ovq/base/error.h"
#include "ovq/base/json_fields.h"
#include "ovq/tasks/icl.h"
#include "ovq/tasks/mixture.h"
#include "ovq/tasks/mqar.h"
#include "ovq/tasks/recall.h"
#include "ovq/tasks/text.h"

namespace ovq::tasks {

using nlohmann::json;

namespace {

enum class Scale { tiny, small, paper };

template <class Value>
Value pick(Scale scale, Value tiny, Value small, Value paper) {
  return scale == Scale::tiny ? tiny : scale == Scale::small ? small : paper;
}

std::vector<EvaluationSetting> doubled(int64_t first, int64_t last) {
  std::vector<EvaluationSetting> evaluations;
  for (int64_t length = first; length <= last; length *= 2) evaluations.push_back({.length = length});
  return evaluations;
}

Preset recall_preset(Scale scale) {
  const int64_t longest = pick(scale, 256, 512, 4096), content = pick(scale, 2, 4, 8);
  return {.options = {{"vocab", pick(scale, 128, 640, 10000)},
                      {"key_length", content},
                      {"value_length", content},
                      {"train_query_fraction", pick(scale, 1.0, 1.0, 0.5)}},
          .train_lengths = halved_lengths(longest),
          .evaluations = doubled(longest / 8, 16 * longest)};
}

Preset positional_recall_preset(Scale scale) {
  Preset preset = recall_preset(scale);
  preset.options["copies"] = 4;
  preset.options["test_queries"] = 1;
  return preset;
}

Preset icl_preset(Scale scale) {
  Preset preset{.options = {{"vocab", pick(scale, 128, 640, 10000)},
                            {"functions", pick(scale, 2, 4, 16)},
                            {"function_tokens", pick(scale, 8, 16, 128)},
                            {"tokens", pick(scale, 2, 4, 12)}}};
  // The paper does not give the lengths of its tests; here a function has 16 or more examples on average.
  const auto test = [&](int64_t functions, int64_t length) {
    preset.evaluations.push_back({.length = length, .options = {{"functions", functions}}});
  };
  switch (scale) {
    case Scale::tiny:
      preset.train_lengths = {64, 128, 256};
      for (auto [functions, length] : {std::pair{1, 256}, {2, 256}, {4, 512}, {8, 1024}}) test(functions, length);
      break;
    case Scale::small:
      preset.train_lengths = {256, 512};
      for (auto [functions, length] : {std::pair{1, 512}, {4, 1024}, {8, 2048}, {16, 4096}}) test(functions, length);
      break;
    case Scale::paper:
      preset.train_lengths = {2048};
      for (auto [functions, length] :
           {std::pair{1, 2048}, {4, 2048}, {16, 8192}, {32, 16384}, {64, 32768}, {128, 65536}})
        test(functions, length);
      break;
  }
  return preset;
}

// At paper scale, the lengths and numbers of pairs tested in the Zoology and Based papers.
Preset mqar_preset(Scale scale) {
  Preset preset{.options = {{"vocab", pick(scale, 256, 1024, 8192)}, {"pairs", 0}, {"alpha", 0.01}},
                .train_lengths = halved_lengths(pick(scale, 128, 256, 256), 3)};
  for (auto [length, pairs] : {std::pair{64, 4}, {64, 8}, {64, 16}, {128, 32}, {256, 64}, {512, 128}, {1024, 256}}) {
    if (length <= pick(scale, 256, 1024, 1024))
      preset.evaluations.push_back({.length = length, .options = {{"pairs", pairs}}});
  }
  return preset;
}

Preset text_preset(Scale scale) {
  const int64_t test_length = pick(scale, 1024, 4096, 16000);
  return {.options = {{"min_document", test_length}, {"bin", pick(scale, 64, 256, 500)}},
          .train_lengths = {pick(scale, 256, 2048, 10000)},
          .evaluations = {{.length = test_length}}};
}

template <class TaskType, class Options>
std::unique_ptr<Task> make(const std::string& name, const json& options) {
  Options o;
  FieldReader reader(options, {.op = name, .kind = "option", .demand = "expected", .check_ranges = false});
  reader.read(o);
  reader.finish();
  return std::make_unique<TaskType>(o);
}

template <class Options>
json describe() {
  return describe_fields(Options());
}

struct Entry {
  const char* name;
  Preset (*preset)(Scale scale);
  std::unique_ptr<Task> (*make)(const std::string& name, const json& options);
  json (*describe)();
  Metric metric = Metric::accuracy;
};

constexpr Entry kEntries[] = {
    {"recall", recall_preset, make<RecallTask, RecallOptions>, describe<RecallOptions>},
    {"positional-recall", positional_recall_preset, make<RecallTask, RecallOptions>, describe<RecallOptions>},
    {"icl", icl_preset, make<IclTask, IclOptions>, describe<IclOptions>},
    {"mqar", mqar_preset, make<MqarTask, MqarOptions>, describe<MqarOptions>},
    {"text", text_preset, make<TextTask, TextOptions>, describe<TextOptions>, Metric::cross_entropy},
};

const Entry& entry(const std::string& name) {
  for (const Entry& candidate : kEntries) {
    if (name == candidate.name) return candidate;
  }
  fail("tasks", unknown_name("task", name, task_names()));
}

}  // namespace

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> scale_names() { return {"tiny", "small", "paper"}; }

Preset preset(const std::string& task, const std::string& scale) {
  const Entry& found = entry(task);
  const std::vector<std::string> names = scale_names();
  const auto at = std::find(names.begin(), names.end(), scale);
  check(at != names.end(), task.c_str(), unknown_name("scale", scale, names));
  return found.preset(static_cast<Scale>(at - names.begin()));
}

json describe_task(const std::string& task) { return entry(task).describe(); }

Metric metric_of(const std::string& task) { return entry(task).metric; }

std::string scale_of(const std::string& task, const json& options) {
  check(options.is_object() || options.is_null(), task.c_str(), "options are of type ", options.type_name(),
        "; expected an object");
  const json scale = options.is_null() ? json("tiny") : options.value("scale", json("tiny"));
  check(scale.is_string(), task.c_str(), "scale is ", scale.dump(), "; expected a text");
  return scale.get<std::string>();
}

json task_options(const std::string& task, const json& options) {
  entry(task);
  json result = preset(task, scale_of(task, options)).options;
  for (const auto& [name, value] : options.items()) {
    if (name != "scale") result[name] = value;
  }
  return result;
}

std::unique_ptr<Task> make_task(const std::string& name, const json& options) {
  return entry(name).make(name, task_options(name, options));
}

}  // namespace ovq::tasks
