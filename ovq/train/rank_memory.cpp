#include "ovq/train/rank_memory.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ovq/base/error.h"
#include "ovq/base/format.h"

namespace ovq::train {

RankMemory rank_memory(int64_t parameters, int64_t processes) {
  check(processes >= 1, "inspect", "processes is ", processes, "; must be at least 1");
  const int64_t bytes = parameters * static_cast<int64_t>(sizeof(float));
  const int64_t share = (parameters + processes - 1) / processes * static_cast<int64_t>(sizeof(float));
  return {.processes = processes,
          .weights = bytes,
          .gradients = bytes,
          .buckets = processes == 1 ? 0 : bytes,
          .moments = 2 * bytes,
          .moments_shared = 2 * share};
}

std::string to_table(const RankMemory& memory) {
  std::string text =
      fmt::format("\nMemory of each of {} processes in training, besides activations\n", memory.processes);
  const auto row = [&](const char* name, int64_t alone, int64_t shared) {
    text += fmt::format("  {:<28}{:>11}{:>19}\n", name, bytes_text(static_cast<double>(alone)),
                        bytes_text(static_cast<double>(shared)));
  };
  text += fmt::format("  {:<28}{:>11}{:>19}\n", "", "", "--shard-optimizer");
  row("weights", memory.weights, memory.weights);
  row("gradients", memory.gradients, memory.gradients);
  row("gradient buckets", memory.buckets, memory.buckets);
  row("optimiser", memory.moments, memory.moments_shared);
  row("total", memory.total(), memory.total_shared());
  return text;
}

nlohmann::json to_json(const RankMemory& memory) {
  return {{"processes", memory.processes}, {"weights", memory.weights},
          {"gradients", memory.gradients}, {"buckets", memory.buckets},
          {"optimizer", memory.moments},   {"optimizer_shared", memory.moments_shared},
          {"total", memory.total()},       {"total_shared", memory.total_shared()}};
}

}  // namespace ovq::train
