#include "ovq/models/config.h"

#include <algorithm>
#include <sstream>

#include "ovq/base/json_fields.h"
#include "ovq/base/json_file.h"

namespace ovq::models {
namespace {

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::istringstream in(names);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

}  // namespace

void ModelConfig::set_centroids(int64_t centroids) {
  for (auto& [name, options] : mixers) {
    if (auto* ovq = std::get_if<nn::OvqAttentionOptions>(&options)) ovq->dictionary.centroids = centroids;
  }
}

std::map<std::string, int64_t> ModelConfig::centroids() const {
  std::map<std::string, int64_t> by_mixer;
  for (const auto& [name, options] : mixers) {
    if (const auto* ovq = std::get_if<nn::OvqAttentionOptions>(&options)) by_mixer[name] = ovq->dictionary.centroids;
  }
  return by_mixer;
}

void ModelConfig::set_centroids(const std::map<std::string, int64_t>& by_mixer) {
  for (const auto& [name, centroids] : by_mixer)
    std::get<nn::OvqAttentionOptions>(mixers.at(name)).dictionary.centroids = centroids;
}

ModelConfig config_from_json(const json& object) {
  ModelConfig config;
  FieldReader reader(object, "");
  if (const json* type = reader.find("model_type"); type != nullptr && *type != "ovq") {
    reader.fail("model_type", *type, "\"ovq\"");
  }
  reader.read(config);
  for (const auto& [name, value] : {std::pair{"vocab_size", config.vocab_size},
                                    {"hidden_size", config.width},
                                    {"num_hidden_layers", config.layers},
                                    {"intermediate_size", config.mlp}}) {
    if (value == 0) reader.fail(name, json(), "an integer of at least 1");
  }
  const json* mixers = reader.find("mixers");
  if (mixers == nullptr || !mixers->is_object() || mixers->empty()) {
    reader.fail("mixers", mixers == nullptr ? json() : *mixers, "an object of mixers by name");
  }
  std::vector<std::string> names;
  for (const auto& [name, options] : mixers->items()) {
    config.mixers.emplace(name, mixer_from_json(options, config.width, "mixers." + name));
    names.push_back(name);
  }
  const json* pattern = reader.find("pattern");
  if (pattern == nullptr || !pattern->is_string()) {
    reader.fail("pattern", pattern == nullptr ? json() : *pattern, "names of mixers, separated by commas");
  }
  config.pattern = split(pattern->get<std::string>());
  if (config.pattern.empty()) reader.fail("pattern", *pattern, "names of mixers, separated by commas");
  for (const std::string& name : config.pattern) {
    if (!config.mixers.contains(name))
      throw std::invalid_argument("[config] " + unknown_name("mixer in pattern", name, names));
  }
  reader.finish();
  return config;
}

json to_json(const ModelConfig& config) {
  json object = fields_to_json(config);
  object["model_type"] = "ovq";
  std::string pattern;
  for (const std::string& name : config.pattern) pattern += (pattern.empty() ? "" : ",") + name;
  object["pattern"] = pattern;
  for (const auto& [name, options] : config.mixers) object["mixers"][name] = to_json(options);
  return object;
}

json without_retired_fields(json patch, const ModelConfig& base) {
  const auto mixers = patch.find("mixers");
  if (mixers == patch.end() || !mixers->is_object()) return patch;
  const std::vector<std::string> known = mixer_types();
  json kept = json::object();
  for (auto& [name, mixer] : mixers->items()) {
    const json own = base.mixers.contains(name) ? json(type_of(base.mixers.at(name))) : json();
    const json type = mixer.is_object() ? mixer.value("type", own) : json();
    const std::string type_name = type.is_string() ? type.get<std::string>() : "";
    if (std::find(known.begin(), known.end(), type_name) != known.end()) update_retired_mixer_fields(mixer, type_name);
    if (!mixer.is_object() || !mixer.empty()) kept[name] = mixer;
  }
  if (kept.empty()) {
    patch.erase(mixers);
  } else {
    *mixers = std::move(kept);
  }
  return patch;
}

std::string identity(ModelConfig config) {
  config.set_centroids(1);
  json object = to_json(config);
  // Fingerprints of states that older programs saved must still match: later fields appear only where they are used,
  // and retired fields stay.
  for (const auto& [name, options] : config.mixers) {
    json& mixer = object["mixers"][name];
    if (!mixer.value("value_norms", true)) mixer.erase("value_norms");
    add_retired_mixer_fields(mixer, type_of(options));
  }
  return object.dump();
}

ModelConfig load_config(const std::filesystem::path& file) {
  const json object = read_json_file(file);
  try {
    return config_from_json(object);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(file.string() + ": " + error.what());
  }
}

}  // namespace ovq::models
