#include "ovq/models/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ovq/base/closest.h"
#include "ovq/base/format.h"
#include "ovq/models/config.h"
#include "ovq/models/flops.h"
#include "ovq/models/presets.h"
#include "ovq/models/sampling.h"

namespace ovq::models {
namespace {

using nlohmann::json;

// "heads 6, head_dim 128, window 128, rope"
std::string options_text(const MixerOptions& options, int64_t width) {
  const std::string type = type_of(options);
  const json defaults = to_json(default_options(type, width)), own = to_json(options);
  std::string text;
  for (const auto& [name, value] : own.items()) {
    const bool size = value.is_number_integer() && value != 0;
    if (!size && value == defaults.at(name)) continue;
    text += text.empty() ? name : ", " + name;
    if (value != true) text += fmt::format(" {}", value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

// 1234567 -> "1.23M"
std::string short_number(double x) {
  const char* units[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; x >= 999.5 && unit + 1 < std::size(units); ++unit) x /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", x)
                   : fmt::format("{:.{}f}{}", x,
                                 x < 9.995   ? 2
                                 : x < 99.95 ? 1
                                             : 0,
                                 units[unit]);
}

std::string context_text(int64_t context) {
  if (context % (1 << 20) == 0) return fmt::format("{}M", context >> 20);
  return context % 1024 == 0 ? fmt::format("{}k", context >> 10) : fmt::format("{}", context);
}

std::string layers_text(const std::vector<int64_t>& layers) {
  std::string text;
  for (const int64_t layer : layers) text += fmt::format("{}{}", text.empty() ? "" : " ", layer);
  return text;
}

void table_row(std::string& text, const std::string& name, const std::vector<std::string>& cells) {
  text += fmt::format("  {:<28}", name);
  for (const std::string& cell : cells) text += fmt::format("{:>11}", cell);
  text += "\n";
}

// A line per mixer: `cell(mixer, cost)` for each context, and a total.
template <class Cell, class Total>
void cost_rows(std::string& text, const Inspection& x, Cell&& cell, Total&& total) {
  for (size_t m = 0; m < x.mixers.size(); ++m) {
    std::vector<std::string> cells;
    for (const ContextCost& cost : x.contexts) cells.push_back(cell(cost.mixers[m]));
    table_row(text, fmt::format("{}, one layer", x.mixers[m].name), cells);
  }
  std::vector<std::string> cells;
  for (const ContextCost& cost : x.contexts) cells.push_back(total(cost));
  if (!cells.empty() && !cells.front().empty()) table_row(text, "model", cells);
}

int64_t bytes_of(StateDtype dtype) { return dtype == StateDtype::bfloat16 ? 2 : 4; }

// Elements of the matrices that LanguageModel::store_bfloat16_weights stores.
int64_t projection_elements(const nn::Mixer& mixer) {
  int64_t elements = 0;
  for (const auto& part : mixer.modules(false)) {
    const auto* projection = dynamic_cast<const nn::ProjectionImpl*>(part.get());
    if (projection != nullptr) elements += projection->weight.numel();
  }
  return elements;
}

std::string optional_number(const std::optional<double>& x) { return x ? short_number(*x) : "-"; }

}  // namespace

std::vector<int64_t> default_contexts() {
  std::vector<int64_t> contexts;
  for (int64_t context = 1 << 10; context <= 1 << 20; context *= 4) contexts.push_back(context);
  return contexts;
}

Inspection inspect(const ModelConfig& config, const std::vector<int64_t>& contexts, const StorageOptions& storage) {
  Inspection x;
  x.storage = storage;
  x.layers = config.layers;
  x.embedding = x.head = config.vocab_size * config.width;
  x.mlps = config.layers * 3 * config.width * config.mlp;
  x.norms = (2 * config.layers + 1) * config.width;
  x.total = x.embedding + x.head + x.mlps + x.norms;
  int64_t stored = x.embedding + x.head + x.mlps;  // as storage.weights says
  std::vector<std::shared_ptr<nn::Mixer>> made;
  std::vector<int64_t> projected;  // of each
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string& name = config.mixer_name(layer);
    auto known = std::find_if(x.mixers.begin(), x.mixers.end(), [&](const auto& m) { return m.name == name; });
    if (known == x.mixers.end()) {
      const MixerOptions& options = config.mixer(layer);
      made.push_back(make_mixer(options));
      MixerInspection mixer{.name = name, .type = type_of(options), .options = options_text(options, config.width)};
      for (const at::Tensor& parameter : made.back()->parameters()) {
        mixer.parameters += parameter.numel();
        if (parameter.dim() == 2) mixer.matrices += parameter.numel();
      }
      projected.push_back(projection_elements(*made.back()));
      known = x.mixers.insert(x.mixers.end(), mixer);
    }
    known->layers.push_back(layer);
    x.total += known->parameters;
    stored += projected[static_cast<size_t>(known - x.mixers.begin())];
    for (const at::Tensor& buffer : made[static_cast<size_t>(known - x.mixers.begin())]->buffers()) {
      x.weight_bytes += static_cast<int64_t>(buffer.nbytes());
    }
  }
  x.weight_bytes += stored * bytes_of(storage.weights) + (x.total - stored) * bytes_of(StateDtype::float32);
  for (const int64_t context : contexts) {
    ContextCost cost{.context = context};
    cost.forward = 2 * static_cast<double>(x.mlps + x.head);
    for (size_t m = 0; m < x.mixers.size(); ++m) {
      const MixerOptions& options = config.mixers.at(x.mixers[m].name);
      const auto layers = static_cast<int64_t>(x.mixers[m].layers.size());
      const ExecutedFlops flops = executed_flops(options, context);
      MixerCost& mixer = cost.mixers.emplace_back();
      mixer = {.state_bytes = made[m]->state_bytes(context, storage.states),
               .forward = flops.forward,
               .backward = flops.backward};
      if (const auto paper = paper_flops(options, context)) {
        mixer.paper_inference = paper->inference;
        mixer.paper_training = paper->training;
      }
      cost.state_bytes += layers * mixer.state_bytes;
      cost.saved_bytes += layers * made[m]->saved_bytes(context, storage.states);
      cost.forward += static_cast<double>(layers * 2 * x.mixers[m].matrices);
    }
    cost.saved_bytes += config.vocab_size * static_cast<int64_t>(sizeof(float)) +
                        std::min(context, kMostRecent) * static_cast<int64_t>(sizeof(int32_t));
    cost.kv_cache_bytes = kv_cache_bytes(config, context, storage.states);
    cost.backward = 2 * cost.forward;
    for (size_t m = 0; m < x.mixers.size(); ++m) {
      const auto layers = static_cast<double>(x.mixers[m].layers.size());
      cost.forward += layers * cost.mixers[m].forward;
      cost.backward += layers * cost.mixers[m].backward;
    }
    x.contexts.push_back(std::move(cost));
  }
  return x;
}

int64_t kv_cache_bytes(const ModelConfig& config, int64_t tokens, StateDtype dtype) {
  int64_t numbers = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    numbers += 2 * std::visit(
                       [&](const auto& options) {
                         if constexpr (requires { options.heads.kv_heads; }) {
                           const nn::HeadOptions& heads = options.heads;
                           return (heads.kv_heads != 0 ? heads.kv_heads : heads.heads) *
                                  (heads.head_dim != 0 ? heads.head_dim : heads.width / heads.heads);
                         } else {
                           return config.width;
                         }
                       },
                       config.mixer(layer));
  }
  return tokens * numbers * bytes_of(dtype);
}

Inspection inspect(const std::string& model, const std::vector<int64_t>& contexts, const StorageOptions& storage) {
  Inspection x;
  const std::vector<std::string> presets = preset_names();
  if (std::find(presets.begin(), presets.end(), model) != presets.end()) {
    const ModelPreset preset = model_preset(model);
    x = inspect(preset.config, contexts, storage);
    x.printed_size = preset.printed_size;
  } else if (std::filesystem::is_directory(model)) {
    const std::filesystem::path file = std::filesystem::path(model) / "config.json";
    if (!std::filesystem::exists(file)) throw std::runtime_error(model + " is not a model: it has no config.json");
    const ModelConfig config = load_config(file);
    try {
      x = inspect(config, contexts, storage);
    } catch (const std::invalid_argument& error) {  // options that contradict each other
      throw std::runtime_error(file.string() + ": " + error.what());
    }
  } else {
    throw std::invalid_argument(unknown_name("model preset or directory", model, presets));
  }
  x.name = model;
  return x;
}

std::string to_table(const Inspection& x) {
  std::string text =
      fmt::format("{}: {} parameters, {} layers", x.name, short_number(static_cast<double>(x.total)), x.layers);
  text += x.printed_size.empty() ? "\n" : fmt::format("; the paper prints {}\n", x.printed_size);
  text += "\nLayers\n";
  for (const MixerInspection& mixer : x.mixers) {
    text += fmt::format("  {:<10} {:<10} {}\n  {:21} layers {}\n", mixer.name, mixer.type, mixer.options, "",
                        layers_text(mixer.layers));
  }

  text += "\nParameters\n";
  const auto part = [&](const std::string& name, int64_t count) {
    text += fmt::format("  {:<28}{:>14}{:>8.1f} %\n", name, count,
                        100 * static_cast<double>(count) / static_cast<double>(x.total));
  };
  part("embedding", x.embedding);
  for (const MixerInspection& mixer : x.mixers) {
    const auto layers = static_cast<int64_t>(mixer.layers.size());
    part(fmt::format("{} mixers, {} x {}", mixer.name, layers, mixer.parameters), layers * mixer.parameters);
  }
  part("gated MLPs", x.mlps);
  part("norms", x.norms);
  part("output embedding", x.head);
  part("total", x.total);
  text += fmt::format("  {:<28}{:>14}\n", fmt::format("bytes, as {}", name_of(x.storage.weights)),
                      bytes_text(static_cast<double>(x.weight_bytes)));
  if (x.contexts.empty()) return text;

  std::vector<std::string> heading;
  for (const ContextCost& cost : x.contexts) heading.push_back(context_text(cost.context));
  const auto section = [&](const std::string& title, auto&& cell, auto&& total) {
    text += fmt::format("\n{}\n", title);
    table_row(text, "tokens of context", heading);
    cost_rows(text, x, cell, total);
  };
  const auto none = [](const ContextCost&) { return std::string(); };
  section(
      fmt::format("State of one sequence, as {}", name_of(x.storage.states)),
      [](const MixerCost& c) { return bytes_text(static_cast<double>(c.state_bytes)); },
      [](const ContextCost& c) { return bytes_text(static_cast<double>(c.state_bytes)); });
  const auto model_row = [&](const char* name, int64_t ContextCost::*bytes) {
    std::vector<std::string> cells;
    for (const ContextCost& cost : x.contexts) cells.push_back(bytes_text(static_cast<double>(cost.*bytes)));
    table_row(text, name, cells);
  };
  model_row("saved in a file", &ContextCost::saved_bytes);
  model_row("a KV cache would take", &ContextCost::kv_cache_bytes);
  section(
      "FLOPs per token as executed, forward, mean over the context (model: with all matrices)",
      [](const MixerCost& c) { return short_number(c.forward); },
      [](const ContextCost& c) { return short_number(c.forward); });
  section(
      "FLOPs per token as executed, backward", [](const MixerCost& c) { return short_number(c.backward); },
      [](const ContextCost& c) { return short_number(c.backward); });
  section(
      "FLOPs per token by the paper's formulas (appendix D), inference",
      [](const MixerCost& c) { return optional_number(c.paper_inference); }, none);
  section(
      "FLOPs per token by the paper's formulas (appendix D), training",
      [](const MixerCost& c) { return optional_number(c.paper_training); }, none);
  return text;
}

json to_json(const Inspection& x) {
  const auto or_null = [](const std::optional<double>& value) { return value ? json(*value) : json(); };
  json object = {
      {"name", x.name},
      {"layers", x.layers},
      {"weights", name_of(x.storage.weights)},
      {"weight_bytes", x.weight_bytes},
      {"state_dtype", name_of(x.storage.states)},
      {"printed_size", x.printed_size.empty() ? json() : json(x.printed_size)},
      {"parameters",
       {{"embedding", x.embedding}, {"mlps", x.mlps}, {"norms", x.norms}, {"head", x.head}, {"total", x.total}}},
      {"mixers", json::array()},
      {"contexts", json::array()}};
  for (const MixerInspection& mixer : x.mixers) {
    object["mixers"].push_back({{"name", mixer.name},
                                {"type", mixer.type},
                                {"options", mixer.options},
                                {"layers", mixer.layers},
                                {"parameters_per_layer", mixer.parameters}});
  }
  for (const ContextCost& cost : x.contexts) {
    json context = {{"context", cost.context},         {"state_bytes", cost.state_bytes},
                    {"saved_bytes", cost.saved_bytes}, {"kv_cache_bytes", cost.kv_cache_bytes},
                    {"forward_flops", cost.forward},   {"backward_flops", cost.backward},
                    {"mixers", json::object()}};
    for (size_t m = 0; m < x.mixers.size(); ++m) {
      const MixerCost& mixer = cost.mixers[m];
      context["mixers"][x.mixers[m].name] = {{"state_bytes", mixer.state_bytes},
                                             {"forward_flops", mixer.forward},
                                             {"backward_flops", mixer.backward},
                                             {"paper_inference_flops", or_null(mixer.paper_inference)},
                                             {"paper_training_flops", or_null(mixer.paper_training)}};
    }
    object["contexts"].push_back(std::move(context));
  }
  return object;
}

std::string preset_table() {
  std::string text;
  for (const std::string& name : preset_names()) {
    const ModelPreset preset = model_preset(name);
    std::string pattern;
    for (const std::string& mixer : preset.config.pattern) pattern += (pattern.empty() ? "" : ",") + mixer;
    text += fmt::format("{:<26} {:>3} layers, width {:>4}: {:<12} {}\n", name, preset.config.layers,
                        preset.config.width, pattern, preset.printed_size);
  }
  return text;
}

}  // namespace ovq::models
