#include "bench/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/machine_report.h"
#include "bench/timing.h"
#include "ovq/base/table.h"
#include "ovq/models/language_model.h"
#include "ovq/models/presets.h"
#include "ovq/ops/backend.h"
#include "ovq/train/adamw.h"

namespace ovq::bench {
namespace {

using at::Tensor;

constexpr double kLossTolerance = 1e-4;  // relative: the same weights and tokens, other roundings

// What a step costs without mixing: the ceiling of any speed-up.
class NoMixer : public nn::Mixer {
 public:
  int64_t state_bytes(int64_t) const override { return 0; }

 protected:
  Tensor mix(const Tensor& x, nn::MixerState*, const nn::OptionalTensor&) override { return x; }
};

struct Step {
  Step(const models::ModelConfig& config, int64_t rows, int64_t length)
      : model(models::make_model(config, 1)), tokens(at::randint(config.vocab_size, {rows, length + 1}, at::kLong)) {
    optimizer = std::make_unique<train::AdamW>(*model, train::AdamWOptions{});
  }

  double run() {
    optimizer->zero_gradients();
    const Tensor logits = model->forward(tokens.slice(1, 0, -1));
    const Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
    loss.backward();
    optimizer->clip_gradients(1.0);
    optimizer->step(1e-5);
    return loss.item<double>();
  }

  std::shared_ptr<models::LanguageModel> model;
  std::unique_ptr<train::AdamW> optimizer;
  Tensor tokens;
};

}  // namespace

TrainStepReport run_train_step(const TrainStepOptions& options) {
  const models::ModelConfig config = models::model_preset(options.preset).config;
  TrainStepReport report{.machine = describe_machine(), .preset = options.preset, .rounds = options.rounds};
  for (const int64_t length : options.lengths) {
    TrainStepCase result{.length = length, .rows = std::max<int64_t>(1, options.tokens / length)};
    torch::manual_seed(2);
    Step fused(config, result.rows, length), plain(config, result.rows, length), without(config, result.rows, length);
    plain.tokens = fused.tokens;
    for (const auto& block : without.model->blocks()) block->mixer = std::make_shared<NoMixer>();
    const double fused_loss = fused.run();
    double plain_loss = 0;
    {
      const ops::BackendScope scope(ops::Backend::composed);
      plain_loss = plain.run();
    }
    if (!(std::abs(fused_loss - plain_loss) <= kLossTolerance * std::abs(plain_loss)))
      throw std::runtime_error("the fused and the plain mixers give different losses: " + std::to_string(fused_loss) +
                               " and " + std::to_string(plain_loss));
    without.run();
    result.fused = result.plain = result.without = std::numeric_limits<double>::infinity();
    for (int round = 0; round < options.rounds; ++round) {
      result.fused = std::min(result.fused, time_once([&] { fused.run(); }));
      {
        const ops::BackendScope scope(ops::Backend::composed);
        result.plain = std::min(result.plain, time_once([&] { plain.run(); }));
      }
      result.without = std::min(result.without, time_once([&] { without.run(); }));
    }
    report.cases.push_back(result);
  }
  return report;
}

std::string to_table(const TrainStepReport& report) {
  const auto milliseconds = [](double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); };
  const auto times = [](double ratio) { return fmt::format("{:.2f}x", ratio); };
  Table table({{.title = "length", .width = 7, .gap = 0},
               {.title = "rows", .width = 6},
               {.title = "fused", .width = 11},
               {.title = "plain", .width = 11},
               {.title = "ratio", .width = 8},
               {.title = "without mixers", .width = 16},
               {.title = "ceiling", .width = 9}});
  for (const TrainStepCase& c : report.cases) {
    table.add({std::to_string(c.length), std::to_string(c.rows), milliseconds(c.fused), milliseconds(c.plain),
               times(c.plain / c.fused), milliseconds(c.without), times(c.plain / c.without)});
  }
  return describe(report.machine) + describe_blas(report.machine.blas) +
         fmt::format("a training step of {}, best of {}\n\n{}", report.preset, report.rounds, table.text());
}

std::string to_json(const TrainStepReport& report) {
  nlohmann::json all = nlohmann::json::array();
  for (const TrainStepCase& c : report.cases) {
    all.push_back({{"model", report.preset},
                   {"length", c.length},
                   {"rows", c.rows},
                   {"fused_seconds", c.fused},
                   {"plain_seconds", c.plain},
                   {"without_mixers_seconds", c.without}});
  }
  return all.dump(2) + "\n";
}

}  // namespace ovq::bench
