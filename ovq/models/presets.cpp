#include "ovq/models/presets.h"

#include <algorithm>
#include <stdexcept>

#include "ovq/base/closest.h"

namespace ovq::models {
namespace {

struct Pattern {
  const char* name;
  std::vector<std::string> mixers;
};

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"std-att", {"full"}},       {"nope", {"nope"}},      {"sw", {"sw"}},
      {"sw-nope", {"sw", "nope"}}, {"sw-vq", {"sw", "vq"}}, {"sw-ovq", {"sw", "ovq"}},
      {"ovq-rope", {"ovq-rope"}},  {"gdn", {"gdn"}},        {"sw-gdn", {"sw", "gdn"}},
      {"gdn-ovq", {"gdn", "ovq"}}, {"mamba2", {"mamba2"}},  {"mesa-net", {"mesa"}},
      {"linear", {"linear"}},
  };
  return all;
}

struct Sizes {
  int64_t layers, width, heads, head_dim, mlp, vocab;
  int64_t chunk, window, centroids, codewords, warmup;
  double beta_init;
  Initializer initializer;
};

// At the small scales the window is about one pair of the recall task: with one that holds several pairs recall was
// learned far later (docs/training.md).
constexpr Sizes kTiny = {4, 64, 1, 64, 192, 128, 32, 8, 512, 128, 300, 2.0, Initializer::copying};
constexpr Sizes kSmall = {4, 128, 2, 64, 384, 640, 32, 8, 1024, 128, 300, 2.0, Initializer::copying};
constexpr Sizes kRecall = {8, 768, 6, 128, 2304, 10'000, 128, 128, 2048, 1024, 4000, 1.0, Initializer::normal};
constexpr Sizes kText = {17, 1024, 8, 128, 2304, 32'000, 128, 128, 2048, 1024, 4000, 1.0, Initializer::normal};
constexpr Sizes kChoice = {21, 1280, 10, 128, 3200, 32'000, 128, 128, 2048, 1024, 4000, 1.0, Initializer::normal};

MixerOptions mixer_of(const std::string& name, const Sizes& s) {
  const nn::HeadOptions heads = {.width = s.width, .heads = s.heads, .head_dim = s.head_dim, .beta_init = s.beta_init};
  if (name == "full") return nn::AttentionOptions{.heads = heads, .rope = true};
  if (name == "nope") return nn::AttentionOptions{.heads = heads};
  if (name == "sw") return nn::AttentionOptions{.heads = heads, .window = s.window, .rope = true};
  if (name == "ovq" || name == "ovq-rope") {
    nn::OvqAttentionOptions options{.heads = heads};
    options.dictionary.chunk = s.chunk;
    options.dictionary.centroids = s.centroids;
    options.dictionary.rope = name == "ovq-rope";
    return options;
  }
  if (name == "vq") {
    return nn::VqAttentionOptions{.heads = heads, .codewords = s.codewords, .chunk = s.chunk, .warmup = s.warmup};
  }
  // Half as many heads as attention, with values twice as wide as keys.
  const int64_t half = std::max<int64_t>(1, s.heads / 2);
  if (name == "gdn") {
    return nn::GatedDeltaNetOptions{
        .width = s.width, .heads = half, .key_dim = s.head_dim, .value_dim = s.heads * s.head_dim / half};
  }
  if (name == "mamba2") {
    const int64_t count = s.width / 64;
    return nn::Mamba2Options{
        .width = s.width, .heads = count, .head_dim = 64, .state = 64, .groups = std::max<int64_t>(1, count / 2)};
  }
  if (name == "mesa") {
    return nn::MesaNetOptions{.width = s.width, .heads = s.heads, .key_dim = s.head_dim, .value_dim = s.head_dim};
  }
  return nn::LinearAttentionMixerOptions{
      .width = s.width, .heads = s.heads, .key_dim = s.head_dim, .value_dim = s.head_dim};
}

ModelConfig make_config(const Pattern& pattern, const Sizes& sizes) {
  ModelConfig config;
  config.vocab_size = sizes.vocab;
  config.width = sizes.width;
  config.layers = sizes.layers;
  config.mlp = sizes.mlp;
  config.initializer = sizes.initializer;
  config.pattern = pattern.mixers;
  for (const std::string& mixer : pattern.mixers) config.mixers.emplace(mixer, mixer_of(mixer, sizes));
  return config;
}

const Pattern* find_pattern(const std::string& name) {
  for (const Pattern& pattern : patterns())
    if (pattern.name == name) return &pattern;
  return nullptr;
}

// A row of the paper's tables: learning rates of recall and in-context learning, size as printed.
struct Row {
  const char* pattern;
  double recall_rate, icl_rate;
  const char* size;
};
constexpr Row kSynthetic[] = {
    {"sw-nope", 6e-4, 4e-4, "77M"}, {"sw-ovq", 6e-4, 6e-4, "77M"},     {"gdn", 6.5e-4, 6.5e-4, "77M"},
    {"mamba2", 4e-4, 8e-4, "77M"},  {"mesa-net", 4e-4, 2.5e-4, "77M"},
};
constexpr const char* kVqSizes[] = {"80M", "83M", "86M"};
constexpr const char* kTextPatterns[] = {"std-att", "nope",     "sw",  "sw-nope", "sw-ovq",
                                         "sw-vq",   "ovq-rope", "gdn", "sw-gdn",  "gdn-ovq"};
constexpr const char* kTextPrinted[] = {"std-att", "sw", "sw-nope", "sw-ovq", "gdn", "sw-gdn", "gdn-ovq"};
constexpr const char* kChoicePatterns[] = {"std-att", "sw-nope", "sw-ovq"};

std::vector<std::pair<std::string, ModelPreset>> paper_presets() {
  std::vector<std::pair<std::string, ModelPreset>> all;
  for (const char* task : {"recall", "icl"}) {
    const std::string prefix = std::string("paper/") + task + "-";
    const bool recall = std::string(task) == "recall";
    for (const Row& row : kSynthetic) {
      const ModelConfig config = make_config(*find_pattern(row.pattern), kRecall);
      all.emplace_back(prefix + row.pattern,
                       ModelPreset{config, recall ? row.recall_rate : row.icl_rate, 1e-5, row.size});
    }
    for (int64_t thousands = 1; thousands <= 3; ++thousands) {
      Sizes sizes = kRecall;
      sizes.codewords = 1024 * thousands;
      all.emplace_back(prefix + "sw-vq-" + std::to_string(thousands) + "k",
                       ModelPreset{make_config(*find_pattern("sw-vq"), sizes), 4e-4, 1e-5, kVqSizes[thousands - 1]});
    }
  }
  for (const char* name : kTextPatterns) {
    const bool printed =
        std::find(std::begin(kTextPrinted), std::end(kTextPrinted), std::string(name)) != std::end(kTextPrinted);
    all.emplace_back(std::string("paper/text-") + name,
                     ModelPreset{make_config(*find_pattern(name), kText), 8e-4, 1e-5, printed ? "257M" : ""});
  }
  for (const char* name : kChoicePatterns) {
    all.emplace_back(std::string("paper/choice-") + name,
                     ModelPreset{make_config(*find_pattern(name), kChoice), 8e-4, 2e-5, "480M"});
  }
  return all;
}

std::vector<std::pair<std::string, ModelPreset>> all_presets() {
  std::vector<std::pair<std::string, ModelPreset>> all;
  for (const auto& [scale, sizes] : {std::pair{"tiny", kTiny}, {"small", kSmall}}) {
    for (const Pattern& pattern : patterns()) {
      all.emplace_back(std::string(scale) + "/" + pattern.name,
                       ModelPreset{make_config(pattern, sizes), 2e-3, 1e-5, ""});
    }
  }
  for (auto& preset : paper_presets()) all.push_back(std::move(preset));
  return all;
}

}  // namespace

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const Pattern& pattern : patterns()) names.emplace_back(pattern.name);
  return names;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, preset] : all_presets()) names.push_back(name);
  return names;
}

ModelPreset model_preset(const std::string& name) {
  for (auto& [candidate, preset] : all_presets())
    if (candidate == name) return preset;
  throw std::invalid_argument(unknown_name("model preset", name, preset_names()));
}

}  // namespace ovq::models
