#include "bench/generate.h"

#include <ATen/Parallel.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bench/other_isa.h"
#include "bench/probe.h"
#include "ovq/base/error.h"
#include "ovq/base/random.h"
#include "ovq/models/inspect.h"
#include "ovq/models/presets.h"
#include "ovq/models/session.h"
#include "ovq/models/storage.h"

namespace ovq::bench {
namespace {

using at::Tensor;
using models::LanguageModel;
using models::ModelState;

constexpr int64_t kCheckedTokens = 150;   // more than a chunk, so that a part is read from a dictionary
constexpr double kTolerance = 1e-3;       // of logits, by norm: same weights, different rounding
constexpr double kStateTolerance = 0.05;  // with rounded states

struct Variant {
  std::string name;
  bool narrow = false;  // weights and states
};

std::vector<int32_t> random_tokens(const models::ModelConfig& config, int64_t count) {
  Random random(7);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
  }
  return tokens;
}

// FLOPs of a prompt with logits for the last token only.
double prompt_flops(const models::ModelConfig& config, int64_t tokens) {
  const models::Inspection inspection = models::inspect(config, {tokens});
  const auto count = static_cast<double>(tokens);
  return count * inspection.contexts.front().forward - 2 * static_cast<double>(inspection.head) * (count - 1);
}

Tensor logits_of(LanguageModel& model, const std::vector<int32_t>& tokens, models::StateDtype dtype) {
  ModelState state(dtype);
  models::Session session(model, state);
  const std::span<const int32_t> all = tokens;
  const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
  session.read(all.first(last), {.piece = 64});
  session.read(all.subspan(last));  // as in decode
  const std::span<const float> logits = session.logits();
  return at::tensor(at::ArrayRef<float>(logits.data(), logits.size()));
}

double relative_error(const Tensor& x, const Tensor& truth) {
  return ((x - truth).norm() / truth.norm()).item<double>();
}

// First compares with another instruction set, with states in float32; then stored states with float32 ones.
std::string mismatch_of(LanguageModel& model, models::StateDtype dtype) {
  const std::vector<int32_t> tokens = random_tokens(model.config(), kCheckedTokens);
  const Tensor logits = logits_of(model, tokens, models::StateDtype::float32);
  {
    const OtherIsa other;
    const double error = relative_error(logits, logits_of(model, tokens, models::StateDtype::float32));
    if (!(error <= kTolerance)) {
      return fmt::format("the logits differ from those with {} by {:.2e}; at most {}", other.name(), error, kTolerance);
    }
  }
  const double rounding = relative_error(logits_of(model, tokens, dtype), logits);
  if (rounding <= kStateTolerance) return "";
  return fmt::format("with states as {} the logits differ by {:.2e}; at most {}", name_of(dtype), rounding,
                     kStateTolerance);
}

// The weights that a token reads, for the probe of the read bandwidth: the same memory on the same pages.
class StoredWeights {
 public:
  explicit StoredWeights(const LanguageModel& model) {
    constexpr int64_t kBlock = 1 << 18;
    for (const auto& item : model.named_parameters()) {
      if (item.key() == "embed.weight") continue;
      const auto floats = static_cast<int64_t>(item.value().nbytes() / sizeof(float));
      const float* const data = static_cast<const float*>(item.value().data_ptr());
      for (int64_t at = 0; at < floats; at += kBlock) blocks_.emplace_back(data + at, std::min(kBlock, floats - at));
    }
  }
  double read() const { return read_seconds(blocks_, at::get_num_threads()); }

 private:
  std::vector<std::span<const float>> blocks_;
};

void measure(LanguageModel& model, const GenerateBenchOptions& options, models::StateDtype dtype,
             GenerateCase& result) {
  const std::vector<int32_t> prompt = random_tokens(model.config(), options.context);
  const StoredWeights weights(model);
  const Bystanders bystanders;
  std::vector<double> prompts, tokens, reads;
  for (int round = 0; round < options.rounds; ++round) {
    ModelState state(dtype);
    models::Session session(model, state);
    models::Sampler sampler({});
    prompts.push_back(time_once([&] { session.read(prompt, {.piece = options.piece}); }));
    session.next(sampler);  // sampled from existing logits; the next tokens require a forward pass
    for (int64_t token = 0; token < options.tokens; ++token) {
      tokens.push_back(time_once([&] { session.next(sampler); }));
      reads.push_back(weights.read());
    }
    result.state_bytes = state.used_bytes();
  }
  result.prompt = summary(prompts);
  result.token = summary(tokens);
  result.read = summary(reads);
  result.weight_bytes = model.weight_bytes_per_token();
  result.bystander_cores = bystanders.busy_cores();
}

}  // namespace

bool GenerateReport::matched() const {
  return std::all_of(cases.begin(), cases.end(), [](const GenerateCase& one) { return one.mismatch.empty(); });
}

GenerateReport run_generate(const GenerateBenchOptions& asked) {
  GenerateBenchOptions options = asked;
  if (options.run.quick) {
    options.context = std::min<int64_t>(options.context, 512);
    options.tokens = std::min<int64_t>(options.tokens, 8);
    options.windows = std::min<int64_t>(options.windows, 4);
    options.rounds = 1;
  }
  check(options.data.empty() || options.trained.model != nullptr, "bench",
        "data is given but the model is not trained; use the directory of a trained model");
  const auto start = Clock::now();
  const Bystanders bystanders;
  GenerateReport report{
      .machine = describe_machine(), .model = options.model, .trained = options.trained.model != nullptr};
  const int threads = at::get_num_threads();
  report.peak = measure_fma_peak(report.machine.isa, threads, 0.5);
  const std::shared_ptr<LanguageModel> model =
      report.trained ? options.trained.model : models::make_model(models::model_preset(options.model).config, 1);
  model->eval();
  for (const Variant& variant : {Variant{.name = "float32"}, {.name = "bfloat16", .narrow = true}}) {
    if (!options.run.wanted(variant.name)) continue;
    const CurrentCase shown(variant.name);
    GenerateCase result{.name = variant.name, .prompt_tokens = options.context};
    result.prompt_flops = prompt_flops(model->config(), options.context);
    if (variant.narrow) model->store_bfloat16_weights();
    const models::StateDtype dtype = variant.narrow ? models::StateDtype::bfloat16 : models::StateDtype::float32;
    result.mismatch = mismatch_of(*model, dtype);
    if (result.mismatch.empty()) {
      measure(*model, options, dtype, result);
      if (!options.data.empty()) {
        result.loss = train::text_loss(
            options.trained, options.data,
            {.length = options.context, .piece = options.piece, .windows = options.windows, .state_dtype = dtype});
      }
    }
    report.cases.push_back(result);
  }
  report.bystander_cores = bystanders.busy_cores();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ovq::bench
