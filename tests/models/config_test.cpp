#include "ovq/models/config.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "ovq/models/presets.h"
#include "tests/models/fixtures.h"

namespace ovq::models::test {
namespace {

using nlohmann::json;

json small_config() {
  return {{"model_type", "ovq"},
          {"vocab_size", 50},
          {"hidden_size", 8},
          {"num_hidden_layers", 3},
          {"intermediate_size", 16},
          {"pattern", "sw,ovq"},
          {"mixers",
           {{"sw", {{"type", "attention"}, {"heads", 2}, {"window", 4}, {"rope", true}}},
            {"ovq", {{"type", "ovq"}, {"heads", 2}, {"chunk", 4}, {"centroids", 6}}}}}};
}

std::string error_of(const json& object) {
  return message_of<std::invalid_argument>([&] { config_from_json(object); });
}

// `small_config` with one field set.
std::string error_with(const std::string& pointer, const json& value) {
  json object = small_config();
  object[json::json_pointer(pointer)] = value;
  return error_of(object);
}

TEST(Config, EveryPresetSurvivesTheRoundTrip) {
  for (const std::string& name : preset_names()) {
    const json written = to_json(model_preset(name).config);
    EXPECT_EQ(to_json(config_from_json(written)), written) << name;
    EXPECT_EQ(to_json(config_from_json(json::parse(written.dump()))), written) << name;
  }
}

TEST(Config, EveryOptionSurvivesTheRoundTrip) {
  json object = small_config();
  object["initializer"] = "fan_in";
  object["rms_norm_eps"] = 1e-5;
  object["mixers"]["ovq"] = {{"type", "ovq"},      {"heads", 4},
                             {"kv_heads", 2},      {"head_dim", 6},
                             {"beta_init", 1.5},   {"chunk", 5},
                             {"centroids", 7},     {"growth", "linear"},
                             {"total_tokens", 99}, {"new_centroids", "random"},
                             {"normalize", true},  {"weighted_writes", true},
                             {"rope", true},       {"rope_base", 500.0},
                             {"seed", 3},          {"value_shift", true},
                             {"convolution", true}};
  object["mixers"]["ovq-rate"] = {{"type", "ovq"}, {"rate", 0.25}};
  object["mixers"]["vq"] = {{"type", "vq"}, {"heads", 2}, {"codewords", 9}, {"form", "linear"}, {"training", "ema"}};
  const json written = to_json(config_from_json(object));
  for (const char* mixer : {"ovq", "ovq-rate", "vq"}) {
    for (const auto& [name, value] : object["mixers"][mixer].items()) EXPECT_EQ(written["mixers"][mixer][name], value);
  }
  EXPECT_EQ(to_json(config_from_json(written)), written);
}

TEST(Config, IdentityIsThatOfOlderPrograms) {
  ModelConfig config = model_preset("tiny/sw-ovq").config;
  EXPECT_EQ(identity(config).find("value_norms"), std::string::npos);
  std::get<nn::OvqAttentionOptions>(config.mixers.at("ovq")).dictionary.value_norms = true;
  EXPECT_NE(identity(config).find("value_norms"), std::string::npos);
}

// The fields that 0.1.0 wrote and that are gone since.
TEST(Config, FilesOfOlderProgramsAreRead) {
  json object = small_config();
  object["mixers"]["gdn"] = {{"type", "gdn"}, {"heads", 2}};
  const ModelConfig now = config_from_json(object);
  object["mixers"]["ovq"]["trial"] = "none";
  object["mixers"]["gdn"]["chunk"] = 32;
  const ModelConfig before = config_from_json(object);
  EXPECT_EQ(to_json(before), to_json(now));
  EXPECT_EQ(identity(before), identity(now));
  const json written = json::parse(identity(now));
  EXPECT_EQ(written["mixers"]["gdn"]["chunk"], 64);
  EXPECT_EQ(written["mixers"]["ovq"]["trial"], "none");
  EXPECT_EQ(identity(config_from_json(written)), identity(now));
  EXPECT_EQ(error_with("/mixers/ovq/trial", "log-size"),
            "[config] mixers.ovq.trial is \"log-size\"; must be \"none\" or absent: this option was removed");
}

TEST(Config, PatchesOfOlderProgramsEqualTheSameWithoutRetiredFields) {
  const ModelConfig base = model_preset("tiny/sw-ovq").config;
  const auto patch = [](const char* text) { return json::parse(text); };
  const auto kept = [&](const char* text) { return without_retired_fields(json::parse(text), base); };
  EXPECT_EQ(kept(R"({"hidden_size": 8, "mixers": {"ovq": {"trial": "none", "chunk": 16}}})"),
            patch(R"({"hidden_size": 8, "mixers": {"ovq": {"chunk": 16}}})"));
  EXPECT_EQ(kept(R"({"mixers": {"ovq": {"trial": "none"}, "sw": {"window": 4}}})"),
            patch(R"({"mixers": {"sw": {"window": 4}}})"));
  EXPECT_EQ(kept(R"({"mixers": {"ovq": {"trial": "none"}}})"), json::object());
  EXPECT_EQ(kept(R"({"mixers": {"own": {"type": "ovq", "trial": "none"}}})"),
            patch(R"({"mixers": {"own": {"type": "ovq"}}})"));
  EXPECT_EQ(kept(R"({"mixers": {"own": {"type": "mesa", "heads": 2, "chunk": 16}}})"),
            patch(R"({"mixers": {"own": {"type": "mesa", "heads": 2}}})"));
  // What the model refuses stays.
  for (const char* same : {R"({"mixers": {"ovq": {"trial": "log-size"}}})", R"({"mixers": {"sw": {"trial": "none"}}})",
                           R"({"mixers": {"sw": null, "ovq": 3}})", R"({"mixers": 3})", R"({"pattern": "sw"})",
                           R"({"mixers": {"own": {"type": 3, "trial": "none"}}})"}) {
    EXPECT_EQ(kept(same), patch(same));
  }
}

TEST(Config, PatternRepeatsOverTheLayers) {
  const ModelConfig config = config_from_json(small_config());
  EXPECT_EQ(config.mixer_name(0), "sw");
  EXPECT_EQ(config.mixer_name(1), "ovq");
  EXPECT_EQ(config.mixer_name(2), "sw");
}

TEST(Config, ErrorsNameTheFieldAndWhatIsAllowed) {
  EXPECT_EQ(error_of(small_config()), "nothing thrown");
  EXPECT_EQ(error_of(json::array()), "[config]  is []; must be an object");
  EXPECT_EQ(error_with("/model_type", "llama"), "[config] model_type is \"llama\"; must be \"ovq\"");
  for (const char* name : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"}) {
    const std::string field = name, pointer = "/" + field;
    EXPECT_EQ(error_with(pointer, 0), "[config] " + field + " is 0; must be an integer of at least 1");
    EXPECT_EQ(error_with(pointer, -3), "[config] " + field + " is -3; must be an integer of at least 1");
    EXPECT_EQ(error_with(pointer, 2.5), "[config] " + field + " is 2.5; must be an integer of at least 1");
    EXPECT_EQ(error_with(pointer, "8"), "[config] " + field + " is \"8\"; must be an integer of at least 1");
    json object = small_config();
    object.erase(field);
    EXPECT_EQ(error_of(object), "[config] " + field + " is null; must be an integer of at least 1");
  }
  EXPECT_EQ(error_with("/vocab_size", uint64_t{1} << 63),
            "[config] vocab_size is 9223372036854775808; must be an integer of at least 1");
  EXPECT_EQ(error_with("/rms_norm_eps", 0), "[config] rms_norm_eps is 0.0; must be positive");
  EXPECT_EQ(error_with("/rms_norm_eps", "x"), "[config] rms_norm_eps is \"x\"; must be a finite number");
  EXPECT_EQ(error_with("/initializer", "xavier"),
            "[config] initializer is \"xavier\"; must be one of \"normal\", \"fan_in\", \"copying\"");
  EXPECT_EQ(error_with("/hiden_size", 8), "[config] unknown field \"hiden_size\"; did you mean \"hidden_size\"?");
  EXPECT_EQ(error_with("/mixers", json::object()), "[config] mixers is {}; must be an object of mixers by name");
  EXPECT_EQ(error_with("/pattern", 3), "[config] pattern is 3; must be names of mixers, separated by commas");
  EXPECT_EQ(error_with("/pattern", ""), "[config] pattern is \"\"; must be names of mixers, separated by commas");
  EXPECT_EQ(error_with("/pattern", "sw,ovg"), "[config] unknown mixer in pattern \"ovg\"; did you mean \"ovq\"?");
  EXPECT_EQ(error_with("/mixers/ovq", 3), "[config] mixers.ovq is 3; must be an object");
  EXPECT_EQ(error_with("/mixers/ovq/type", 3), "[config] mixers.ovq.type is 3; must be the name of a mixer");
  EXPECT_EQ(error_with("/mixers/ovq/type", "mamba"), "[config] unknown mixer type \"mamba\"; did you mean \"mamba2\"?");
  EXPECT_EQ(error_with("/mixers/ovq/growth", "fast"),
            "[config] mixers.ovq.growth is \"fast\"; must be one of \"plateau\", \"linear\", \"all\", \"square-root\"");
  EXPECT_EQ(error_with("/mixers/ovq/chunk", 0), "[config] mixers.ovq.chunk is 0; must be an integer of at least 1");
  EXPECT_EQ(error_with("/mixers/ovq/rope", 1), "[config] mixers.ovq.rope is 1; must be true or false");
  EXPECT_EQ(error_with("/mixers/ovq/centroid", 9),
            "[config] unknown field of mixers.ovq \"centroid\"; did you mean \"centroids\"?");
}

class ConfigFile : public ScratchDirectory {};

TEST_F(ConfigFile, ErrorsNameTheFile) {
  const std::filesystem::path file = directory / "config.json";
  const auto load = [&] { return message_of<std::runtime_error>([&] { load_config(file); }); };
  EXPECT_EQ(load(), "cannot open " + file.string());
  std::ofstream(file) << "{\"vocab_size\": ";
  EXPECT_TRUE(load().starts_with(file.string() + " is not valid JSON: ")) << load();
  std::ofstream(file) << "{\"vocab_size\": 0}";
  EXPECT_EQ(load(), file.string() + ": [config] vocab_size is 0; must be an integer of at least 1");
}

TEST(Presets, UnknownNamesGetTheClosest) {
  const auto error = [](const std::string& name) {
    return message_of<std::invalid_argument>([&] { model_preset(name); });
  };
  EXPECT_TRUE(error("tiny/sw-ovg").starts_with("unknown model preset \"tiny/sw-ovg\"; did you mean \"tiny/sw-ovq\""))
      << error("tiny/sw-ovg");
}

}  // namespace
}  // namespace ovq::models::test
