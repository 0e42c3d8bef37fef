#include "ovq/models/mixer_options.h"

#include <optional>

#include "ovq/base/json_fields.h"

namespace ovq::models {
namespace {

constexpr EnumNames<kernels::Growth, 3> kGrowth = {
    {{kernels::Growth::plateau, "plateau"}, {kernels::Growth::linear, "linear"}, {kernels::Growth::all, "all"}}};
constexpr EnumNames<kernels::NewCentroids, 2> kNewCentroids = {
    {{kernels::NewCentroids::spread, "spread"}, {kernels::NewCentroids::random, "random"}}};
constexpr EnumNames<nn::VqForm, 2> kVqForm = {{{nn::VqForm::quadratic, "quadratic"}, {nn::VqForm::linear, "linear"}}};
constexpr EnumNames<nn::CodebookTraining, 3> kTraining = {{{nn::CodebookTraining::ema, "ema"},
                                                           {nn::CodebookTraining::diveq, "diveq"},
                                                           {nn::CodebookTraining::sf_diveq, "sf-diveq"}}};

template <class Visitor>
void visit(Visitor& field, nn::HeadOptions& o) {
  field("heads", o.heads, 1);
  field("kv_heads", o.kv_heads, 0);
  field("head_dim", o.head_dim, 0);
  field("beta_init", o.beta_init);
  field("value_shift", o.value_shift);
  field("convolution", o.convolution);
}

template <class Visitor>
void visit(Visitor& field, nn::AttentionOptions& o) {
  visit(field, o.heads);
  field("window", o.window, 0);
  field("rope", o.rope);
  field("rope_base", o.rope_base);
}

template <class Visitor>
void visit(Visitor& field, nn::OvqAttentionOptions& o) {
  visit(field, o.heads);
  kernels::OvqOptions& d = o.dictionary;
  field("chunk", d.chunk, 1);
  field("centroids", d.centroids, 1);
  field("growth", d.growth, kGrowth);
  field("total_tokens", d.total_tokens, 0);
  field("new_centroids", d.new_centroids, kNewCentroids);
  double rate = d.rate.value_or(0.0f), base = d.rope_base;  // rate 0: running means
  field("rate", rate);
  d.rate = rate == 0 ? std::nullopt : std::optional<float>(static_cast<float>(rate));
  field("normalize", d.normalize);
  field("rope", d.rope);
  field("rope_base", base);
  d.rope_base = static_cast<float>(base);
  auto seed = static_cast<int64_t>(d.seed);
  field("seed", seed, 0);
  d.seed = static_cast<uint64_t>(seed);
  field("weighted_writes", o.weighted_writes);
}

template <class Visitor>
void visit(Visitor& field, nn::VqAttentionOptions& o) {
  visit(field, o.heads);
  field("codewords", o.codewords, 2);
  field("chunk", o.chunk, 1);
  field("form", o.form, kVqForm);
  field("training", o.training, kTraining);
  field("no_use", o.no_use);
  field("noise", o.noise);
  field("ema_decay", o.ema_decay);
  field("commitment", o.commitment);
  field("warmup", o.warmup, 0);
}

template <class Visitor>
void visit(Visitor& field, nn::GatedDeltaNetOptions& o) {
  field("heads", o.heads, 1);
  field("key_dim", o.key_dim, 1);
  field("value_dim", o.value_dim, 1);
  field("conv_width", o.conv_width, 1);
  field("chunk", o.chunk, 1);
}

template <class Visitor>
void visit(Visitor& field, nn::LinearAttentionMixerOptions& o) {
  field("heads", o.heads, 1);
  field("key_dim", o.key_dim, 1);
  field("value_dim", o.value_dim, 1);
  field("conv_width", o.conv_width, 1);
  field("chunk", o.chunk, 1);
}

template <class Visitor>
void visit(Visitor& field, nn::MesaNetOptions& o) {
  field("heads", o.heads, 1);
  field("key_dim", o.key_dim, 1);
  field("value_dim", o.value_dim, 1);
  field("conv_width", o.conv_width, 1);
  field("iterations", o.iterations, 1);
  field("chunk", o.chunk, 1);
}

template <class Visitor>
void visit(Visitor& field, nn::Mamba2Options& o) {
  field("heads", o.heads, 0);
  field("head_dim", o.head_dim, 1);
  field("expand", o.expand, 1);
  field("state", o.state, 1);
  field("groups", o.groups, 1);
  field("conv_width", o.conv_width, 1);
  field("chunk", o.chunk, 1);
}

// A mixer's name in configurations, its options, and its class.
template <class OptionsType, class MixerType>
struct Kind {
  using Options = OptionsType;
  using Mixer = MixerType;
  const char* name;
};

template <class Body>
void for_each_kind(Body&& body) {
  body(Kind<nn::AttentionOptions, nn::Attention>{"attention"});
  body(Kind<nn::OvqAttentionOptions, nn::OvqAttention>{"ovq"});
  body(Kind<nn::VqAttentionOptions, nn::VqAttention>{"vq"});
  body(Kind<nn::GatedDeltaNetOptions, nn::GatedDeltaNet>{"gdn"});
  body(Kind<nn::Mamba2Options, nn::Mamba2>{"mamba2"});
  body(Kind<nn::MesaNetOptions, nn::MesaNet>{"mesa"});
  body(Kind<nn::LinearAttentionMixerOptions, nn::LinearAttentionMixer>{"linear"});
}

template <class Options>
void set_width(Options& options, int64_t width) {
  if constexpr (requires { options.heads.width; }) {
    options.heads.width = width;
  } else {
    options.width = width;
  }
}

}  // namespace

std::vector<std::string> mixer_types() {
  std::vector<std::string> names;
  for_each_kind([&](auto kind) { names.emplace_back(kind.name); });
  return names;
}

std::string type_of(const MixerOptions& options) {
  std::string name;
  for_each_kind([&](auto kind) {
    if (std::holds_alternative<typename decltype(kind)::Options>(options)) name = kind.name;
  });
  return name;
}

MixerOptions default_options(const std::string& type, int64_t width) {
  std::optional<MixerOptions> result;
  for_each_kind([&](auto kind) {
    if (type != kind.name) return;
    typename decltype(kind)::Options options;
    set_width(options, width);
    result = options;
  });
  if (!result) throw std::invalid_argument("[config] " + unknown_name("mixer type", type, mixer_types()));
  return *result;
}

MixerOptions mixer_from_json(const json& object, int64_t width, const std::string& path) {
  FieldReader reader(object, path);
  const json* type = reader.find("type");
  if (type == nullptr || !type->is_string()) {
    reader.fail("type", type == nullptr ? json() : *type, "the name of a mixer");
  }
  MixerOptions options = default_options(type->get<std::string>(), width);
  std::visit([&](auto& o) { visit(reader, o); }, options);
  reader.finish();
  return options;
}

json to_json(const MixerOptions& options) {
  json object = {{"type", type_of(options)}};
  MixerOptions copy = options;
  FieldWriter writer(object);
  std::visit([&](auto& o) { visit(writer, o); }, copy);
  return object;
}

std::shared_ptr<nn::Mixer> make_mixer(const MixerOptions& options) {
  std::shared_ptr<nn::Mixer> mixer;
  for_each_kind([&](auto kind) {
    using ThisKind = decltype(kind);
    if (const auto* own = std::get_if<typename ThisKind::Options>(&options))
      mixer = std::make_shared<typename ThisKind::Mixer>(*own);
  });
  return mixer;
}

MixerOptions options_of(const nn::Mixer& mixer) {
  MixerOptions options;
  for_each_kind([&](auto kind) {
    if (const auto* own = dynamic_cast<const typename decltype(kind)::Mixer*>(&mixer)) options = own->options();
  });
  return options;
}

}  // namespace ovq::models
