#include "ovq/models/mixer_options.h"

#include <optional>

#include "ovq/base/json_fields.h"

namespace ovq::models {
namespace {

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
  std::visit([&](auto& o) { reader.read(o); }, options);
  reader.finish();
  return options;
}

json describe_mixer(const std::string& type) {
  return std::visit([](const auto& o) { return describe_fields(o); }, default_options(type, 0));
}

json to_json(const MixerOptions& options) {
  json object = {{"type", type_of(options)}};
  std::visit([&](const auto& o) { object.update(fields_to_json(o)); }, options);
  return object;
}

void update_retired_mixer_fields(json& object, const std::string& type) {
  std::visit([&](const auto& o) { update_retired_fields(object, o); }, default_options(type, 0));
}

void add_retired_mixer_fields(json& object, const std::string& type) {
  std::visit([&](const auto& o) { add_retired_fields(object, o); }, default_options(type, 0));
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
