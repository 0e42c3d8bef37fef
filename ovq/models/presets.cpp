#include "ovq/models/presets.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <tuple>

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

// Attention with value shift and convolution, which the linear layers have something like anyway, or as in the paper.
enum class AttentionForm { extended, plain };
constexpr std::string_view kPlain = "-plain";

struct HeadSizes {
  int64_t count, dim;
};

struct Sizes {
  int64_t layers, width, mlp, vocab;
  HeadSizes heads;   // of windows and of the linear layers
  HeadSizes recall;  // of attention to the whole context: at equal size, many small ones recall more (docs/recall.md)
  HeadSizes plain;   // the same in the plain form
  int64_t chunk, window, centroids, codewords, warmup;
  double beta;  // its initial value; 0: sqrt(head dim)
  Initializer initializer = Initializer::normal;
  bool extended_windows = false;  // sliding windows have the extended form too, not only attention to the whole context
};

bool has_two_forms(const Pattern& pattern, const Sizes& sizes) {
  return std::any_of(pattern.mixers.begin(), pattern.mixers.end(), [&](const std::string& mixer) {
    return mixer == "full" || mixer == "nope" || mixer == "vq" || mixer.starts_with("ovq") ||
           (mixer == "sw" && sizes.extended_windows);
  });
}

// All patterns in their usual form, then those with a plain form.
std::vector<std::string> names_of_forms(const Sizes& sizes) {
  std::vector<std::string> names;
  for (const Pattern& pattern : patterns()) names.emplace_back(pattern.name);
  for (const Pattern& pattern : patterns()) {
    if (has_two_forms(pattern, sizes)) names.push_back(pattern.name + std::string(kPlain));
  }
  return names;
}

// At the small scales the window is about one pair of the recall task: with one that holds several pairs recall was
// learned far later (docs/training.md).
constexpr Sizes kTiny = {.layers = 4,
                         .width = 64,
                         .mlp = 192,
                         .vocab = 128,
                         .heads = {1, 64},
                         .recall = {8, 16},
                         .plain = {1, 64},
                         .chunk = 32,
                         .window = 8,
                         .centroids = 128,
                         .codewords = 128,
                         .warmup = 300,
                         .beta = 16,
                         .initializer = Initializer::copying};
constexpr Sizes kSmall = {.layers = 4,
                          .width = 128,
                          .mlp = 384,
                          .vocab = 640,
                          .heads = {2, 64},
                          .recall = {8, 16},
                          .plain = {2, 64},
                          .chunk = 32,
                          .window = 8,
                          .centroids = 256,
                          .codewords = 128,
                          .warmup = 300,
                          .beta = 16,
                          .initializer = Initializer::copying};

// Text on a few cores. Window, chunk and centroids have about the same ratio to a training length of 1,024 as the
// paper's to 10,000. With an even number of heads the linear layers have as many parameters as attention.
constexpr Sizes kSmallText = {.layers = 4,
                              .width = 192,
                              .mlp = 512,
                              .vocab = 2048,
                              .heads = {6, 32},
                              .recall = {6, 32},
                              .plain = {6, 32},
                              .chunk = 64,
                              .window = 64,
                              .centroids = 512,
                              .codewords = 256,
                              .warmup = 300,
                              .beta = 0,
                              .initializer = Initializer::fan_in,
                              .extended_windows = true};

// The same in a minute or two, for a first look.
constexpr Sizes tiny_text() {
  Sizes sizes = kSmallText;
  sizes.width = 128;
  sizes.mlp = 256;
  sizes.vocab = 1024;
  sizes.heads = sizes.recall = sizes.plain = {8, 16};
  sizes.window = sizes.chunk = 32;
  return sizes;
}
constexpr Sizes kTinyText = tiny_text();

// The sizes that all models of the paper share; PaperSizes differ between experiments.
struct PaperSizes {
  int64_t layers, width, heads, mlp, vocab;
};
constexpr Sizes paper_sizes(const PaperSizes& own) {
  constexpr int64_t kHeadDim = 128;
  return {.layers = own.layers,
          .width = own.width,
          .mlp = own.mlp,
          .vocab = own.vocab,
          .heads = {own.heads, kHeadDim},
          .recall = {own.heads, kHeadDim},
          .plain = {own.heads, kHeadDim},
          .chunk = 128,
          .window = 128,
          .centroids = 2048,
          .codewords = 1024,
          .warmup = 4000,
          .beta = 0};
}
constexpr Sizes kRecall = paper_sizes({.layers = 8, .width = 768, .heads = 6, .mlp = 2304, .vocab = 10'000});
constexpr Sizes kText = paper_sizes({.layers = 17, .width = 1024, .heads = 8, .mlp = 2304, .vocab = 32'000});
constexpr Sizes kChoice = paper_sizes({.layers = 21, .width = 1280, .heads = 10, .mlp = 3200, .vocab = 32'000});

// Learning rates of AdamW: tuned here for the small scales, otherwise the paper's, except where it depends on the
// layers.
constexpr double kTinyRate = 8e-3, kSmallRate = 2e-3;
constexpr double kPaperVqRate = 4e-4, kPaperTextRate = 8e-4, kPaperChoiceRate = 8e-4;
constexpr double kLastRate = 1e-5, kLastChoiceRate = 2e-5;

nn::HeadOptions head_options(const HeadSizes& heads, const Sizes& s) {
  const double root = std::sqrt(static_cast<double>(heads.dim));
  return {.width = s.width, .heads = heads.count, .head_dim = heads.dim, .beta_init = s.beta == 0 ? 1 : s.beta / root};
}

MixerOptions mixer_of(const std::string& name, const Sizes& s, AttentionForm form) {
  if (name == "sw") {
    nn::AttentionOptions options{.heads = head_options(s.heads, s), .window = s.window, .rope = true};
    options.heads.value_shift = options.heads.convolution = s.extended_windows && form == AttentionForm::extended;
    return options;
  }
  nn::HeadOptions whole = head_options(form == AttentionForm::plain ? s.plain : s.recall, s);
  whole.value_shift = whole.convolution = form == AttentionForm::extended;
  if (name == "full") return nn::AttentionOptions{.heads = whole, .rope = true};
  if (name == "nope") return nn::AttentionOptions{.heads = whole};
  if (name == "ovq" || name == "ovq-rope") {
    nn::OvqAttentionOptions options{.heads = whole};
    options.dictionary.chunk = s.chunk;
    options.dictionary.centroids = s.centroids;
    options.dictionary.rope = name == "ovq-rope";
    return options;
  }
  if (name == "vq") {
    return nn::VqAttentionOptions{.heads = whole, .codewords = s.codewords, .chunk = s.chunk, .warmup = s.warmup};
  }
  // Half as many heads as attention, with values twice as wide as keys.
  const auto [heads, dim] = s.heads;
  const int64_t half = std::max<int64_t>(1, heads / 2);
  if (name == "gdn") {
    return nn::GatedDeltaNetOptions{.width = s.width, .heads = half, .key_dim = dim, .value_dim = heads * dim / half};
  }
  if (name == "mamba2") {
    constexpr int64_t kHeadDim = 64;
    const int64_t count = s.width / kHeadDim;
    return nn::Mamba2Options{
        .width = s.width, .heads = count, .head_dim = kHeadDim, .state = 64, .groups = std::max<int64_t>(1, count / 2)};
  }
  if (name == "mesa") {
    return nn::MesaNetOptions{.width = s.width, .heads = heads, .key_dim = dim, .value_dim = dim};
  }
  return nn::LinearAttentionMixerOptions{.width = s.width, .heads = heads, .key_dim = dim, .value_dim = dim};
}

ModelConfig make_config(const Pattern& pattern, const Sizes& sizes, AttentionForm form) {
  ModelConfig config;
  config.vocab_size = sizes.vocab;
  config.width = sizes.width;
  config.layers = sizes.layers;
  config.mlp = sizes.mlp;
  config.initializer = sizes.initializer;
  config.pattern = pattern.mixers;
  for (const std::string& mixer : pattern.mixers) config.mixers.emplace(mixer, mixer_of(mixer, sizes, form));
  return config;
}

const Pattern* find_pattern(const std::string& name) {
  for (const Pattern& pattern : patterns())
    if (pattern.name == name) return &pattern;
  return nullptr;
}

// The paper's form.
ModelConfig paper_config(const std::string& pattern, const Sizes& sizes) {
  return make_config(*find_pattern(pattern), sizes, AttentionForm::plain);
}

// A row of the paper's tables.
struct PaperRow {
  const char* pattern;
  double recall_rate, icl_rate;  // learning rates
  const char* size;              // as printed
};
constexpr PaperRow kSynthetic[] = {
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
    for (const PaperRow& row : kSynthetic) {
      const ModelConfig config = paper_config(row.pattern, kRecall);
      all.emplace_back(prefix + row.pattern, ModelPreset{.config = config,
                                                         .learning_rate = recall ? row.recall_rate : row.icl_rate,
                                                         .min_learning_rate = kLastRate,
                                                         .printed_size = row.size});
    }
    for (int64_t thousands = 1; thousands <= 3; ++thousands) {
      Sizes sizes = kRecall;
      sizes.codewords = 1024 * thousands;
      all.emplace_back(prefix + "sw-vq-" + std::to_string(thousands) + "k",
                       ModelPreset{.config = paper_config("sw-vq", sizes),
                                   .learning_rate = kPaperVqRate,
                                   .min_learning_rate = kLastRate,
                                   .printed_size = kVqSizes[thousands - 1]});
    }
  }
  for (const char* name : kTextPatterns) {
    const bool printed =
        std::find(std::begin(kTextPrinted), std::end(kTextPrinted), std::string(name)) != std::end(kTextPrinted);
    all.emplace_back(std::string("paper/text-") + name, ModelPreset{.config = paper_config(name, kText),
                                                                    .learning_rate = kPaperTextRate,
                                                                    .min_learning_rate = kLastRate,
                                                                    .printed_size = printed ? "257M" : ""});
  }
  for (const char* name : kChoicePatterns) {
    all.emplace_back(std::string("paper/choice-") + name, ModelPreset{.config = paper_config(name, kChoice),
                                                                      .learning_rate = kPaperChoiceRate,
                                                                      .min_learning_rate = kLastChoiceRate,
                                                                      .printed_size = "480M"});
  }
  return all;
}

std::vector<std::pair<std::string, ModelPreset>> all_presets() {
  std::vector<std::pair<std::string, ModelPreset>> all;
  for (const auto& [scale, sizes, rate] : {std::tuple{"tiny/", kTiny, kTinyRate},
                                           {"small/", kSmall, kSmallRate},
                                           {"tiny/text-", kTinyText, kTinyRate},
                                           {"small/text-", kSmallText, kSmallRate}}) {
    for (const std::string& name : names_of_forms(sizes)) {
      const bool plain = name.ends_with(kPlain);
      const Pattern& pattern = *find_pattern(plain ? name.substr(0, name.size() - kPlain.size()) : name);
      const ModelConfig config = make_config(pattern, sizes, plain ? AttentionForm::plain : AttentionForm::extended);
      all.emplace_back(scale + name,
                       ModelPreset{.config = config, .learning_rate = rate, .min_learning_rate = kLastRate});
    }
  }
  for (auto& preset : paper_presets()) all.push_back(std::move(preset));
  return all;
}

}  // namespace

std::vector<std::string> pattern_names() { return names_of_forms(kTiny); }

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
