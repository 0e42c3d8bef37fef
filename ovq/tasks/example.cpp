#include "ovq/tasks/example.h"

#include <algorithm>

#include "ovq/tasks/registry.h"
#include "ovq/tasks/render.h"

namespace ovq::tasks {

Example draw_example(const ExampleOptions& options) {
  const Preset sizes = preset(options.task, options.scale);
  nlohmann::json merged = options.options;
  merged["scale"] = options.scale;
  Example example{.task = make_task(options.task, merged), .scale = options.scale};
  example.batch = example.task->sample({.rows = 1,
                                        .length = options.length == 0 ? sizes.train_lengths.front() : options.length,
                                        .seed = options.seed,
                                        .step = options.step,
                                        .split = options.split});
  return example;
}

std::string to_text(const Example& example) {
  const auto& [task, scale, batch] = example;
  const auto asked =
      std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t target) { return target != kNoTarget; });
  return task->name() + " (" + scale + "): vocabulary " + std::to_string(task->vocab()) + ", " +
         std::to_string(batch.length) + " tokens, " + std::to_string(asked) + " targets\n\n" + render(*task, batch, 0) +
         "\n";
}

nlohmann::json to_json(const Example& example) {
  const auto& [task, scale, batch] = example;
  return {{"task", task->name()},
          {"vocab", task->vocab()},
          {"tokens", batch.tokens},
          {"targets", batch.targets},
          {"groups", batch.groups}};
}

}  // namespace ovq::tasks
