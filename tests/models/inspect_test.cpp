#include "ovq/models/inspect.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "ovq/models/language_model.h"
#include "ovq/models/presets.h"
#include "ovq/models/weights.h"
#include "tests/models/fixtures.h"

namespace ovq::models::test {
namespace {

TEST(Inspect, PaperPresetsHaveTheirPrintedSize) {
  int64_t printed = 0;
  for (const std::string& name : preset_names()) {
    const Inspection x = inspect(name, {});
    if (x.printed_size.empty()) continue;
    ++printed;
    const double size = std::stod(x.printed_size) * 1e6;
    EXPECT_NEAR(static_cast<double>(x.total), size, 0.02 * size) << name;
  }
  EXPECT_GE(printed, 26);
}

TEST(Inspect, CountsWhatTheModelHas) {
  for (const std::string& name : preset_names()) {
    if (!name.starts_with("tiny/")) continue;
    const LanguageModel model(model_preset(name).config);
    const Inspection x = inspect(name, {1024});
    int64_t parameters = 0, norms = 0, mlps = 0;
    for (const auto& item : model.named_parameters()) {
      parameters += item.value().numel();
      if (item.key().find("_norm.") != std::string::npos || item.key() == "norm.weight") norms += item.value().numel();
      if (item.key().find(".mlp.") != std::string::npos) mlps += item.value().numel();
    }
    EXPECT_EQ(x.total, parameters) << name;
    EXPECT_EQ(x.norms, norms) << name;
    EXPECT_EQ(x.mlps, mlps) << name;
    EXPECT_EQ(x.contexts[0].state_bytes, model.state_bytes(1024)) << name;
  }
}

TEST(Inspect, StateLevelsOffWithOvqAndGrowsWithAttention) {
  const std::vector<int64_t> contexts = {1 << 10, 1 << 14, 1 << 18, 1 << 20};
  const auto bytes = [&](const std::string& name) {
    std::vector<double> all;
    for (const ContextCost& cost : inspect(name, contexts).contexts)
      all.push_back(static_cast<double>(cost.state_bytes));
    return all;
  };
  const auto ovq = bytes("paper/text-sw-ovq"), full = bytes("paper/text-std-att"), gdn = bytes("paper/text-gdn");
  EXPECT_LT(ovq[3], 1.02 * ovq[2]);
  EXPECT_NEAR(full[3] / full[2], 4, 1e-3);
  EXPECT_EQ(gdn[3], gdn[0]);
  EXPECT_LT(ovq[3], 0.01 * full[3]);
  // a cache: keys and values of 17 layers of width 1024, with room for a sixteenth more
  EXPECT_EQ(full[2], 17.0 * 2 * 1024 * 4 * (1 << 18) * 17 / 16);
}

// Appendix D with B = 1, in the form that the paper prints.
TEST(Inspect, LabelledFlopsAreThePapersFormulas) {
  const double H = 8, d = 128, L = 128;
  for (const int64_t context : {1 << 10, 1 << 14, 1 << 20}) {
    const auto T = static_cast<double>(context);
    const auto cost = [&](const std::string& name, size_t mixer) {
      return inspect(name, {context}).contexts.at(0).mixers.at(mixer);
    };
    const MixerCost attention = cost("paper/text-std-att", 0);
    EXPECT_DOUBLE_EQ(attention.paper_inference.value() * T, 2 * H * T * T * d / 2);
    EXPECT_DOUBLE_EQ(attention.paper_training.value() * T, 6 * H * T * T * d / 2);
    EXPECT_DOUBLE_EQ(attention.forward, 2 * T * d * H);
    EXPECT_DOUBLE_EQ(attention.backward, 5 * T * d * H);

    const double N = 2048;
    double inference = 0, training = 0, forward = 0, backward = 0;
    for (double c = 0; c < T / L; ++c) {
      // centroids after c chunks; with L = 128 the limit of L new ones a chunk never binds
      const double centroids = std::floor(c * L * N / (c * L + N) + 0.5);
      inference += H * L * d * (6 * centroids + 2 * L);
      training += H * L * d * (12 * centroids + 6 * L);
      forward += L * d * (H * (4 * centroids + 2 * L) + H * 2 * centroids);
      backward += L * d * H * (10 * centroids + 5 * L);
    }
    const MixerCost ovq = cost("paper/text-sw-ovq", 1);
    EXPECT_NEAR(ovq.paper_inference.value() * T / inference, 1, 1e-12);
    EXPECT_NEAR(ovq.paper_training.value() * T / training, 1, 1e-12);
    EXPECT_NEAR(ovq.forward * T / forward, 1, 1e-12);
    EXPECT_NEAR(ovq.backward * T / backward, 1, 1e-12);

    const double heads = 4, C = 64;
    const MixerCost gdn = cost("paper/text-gdn", 0);
    const double total = 6 * T * heads * d * d + T * heads * (6 * d * d + 2 * C * 5 * d + C * C / 3);
    EXPECT_DOUBLE_EQ(gdn.paper_inference.value() * T, total);
    EXPECT_DOUBLE_EQ(gdn.paper_training.value() * T,
                     18 * T * heads * d * d + 3 * T * heads * (6 * d * d + 2 * C * 5 * d + C * C / 3));

    const MixerCost window = cost("paper/text-sw", 0);
    EXPECT_FALSE(window.paper_inference.has_value());
    EXPECT_DOUBLE_EQ(window.forward, 4 * H * d * (128 - 128.0 * 128 / (2 * T)));
  }
}

TEST(Inspect, ModelFlopsAreThoseOfItsParts) {
  const Inspection x = inspect("tiny/sw-ovq", {4096});
  const ContextCost& cost = x.contexts.at(0);
  // two layers of each mixer; four projections a mixer, of 64 x 64 and 64 x 128; convolutions of queries and keys
  const double matrices = 2 * 4 * 64 * 64 + 2 * 4 * 64 * 128 + 2 * 2 * 128 * 4 + static_cast<double>(x.mlps + x.head);
  EXPECT_DOUBLE_EQ(cost.forward, 2 * matrices + 2 * cost.mixers[0].forward + 2 * cost.mixers[1].forward);
  EXPECT_DOUBLE_EQ(cost.backward, 4 * matrices + 2 * cost.mixers[0].backward + 2 * cost.mixers[1].backward);
}

TEST(Inspect, JsonHoldsTheTable) {
  const Inspection x = inspect("paper/recall-sw-ovq");
  const nlohmann::json object = to_json(x);
  EXPECT_EQ(object["printed_size"], "77M");
  EXPECT_EQ(object["parameters"]["total"], x.total);
  EXPECT_EQ(object["contexts"].size(), 6u);
  EXPECT_EQ(object["contexts"][5]["context"], 1 << 20);
  EXPECT_EQ(object["contexts"][5]["mixers"]["ovq"]["state_bytes"], x.contexts[5].mixers[1].state_bytes);
  EXPECT_TRUE(object["contexts"][5]["mixers"]["sw"]["paper_training_flops"].is_null());
  const std::string table = to_table(x);
  for (const char* text : {"the paper prints 77M", "layers 1 3 5 7", "centroids 2048", "State of one sequence"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text;
  }
  for (const std::string& name : preset_names()) EXPECT_NE(preset_table().find(name + " "), std::string::npos) << name;
}

class InspectDirectories : public ScratchDirectory {};

TEST_F(InspectDirectories, ModelsAndRuns) {
  const auto model = make_model(model_preset("tiny/sw-ovq").config, 1);
  save_model(*model, directory / "model");
  const Inspection expected = inspect("tiny/sw-ovq");
  EXPECT_EQ(inspect((directory / "model").string()).total, expected.total);
  model->set_centroids(1024);
  save_model(*model, directory / "larger");
  EXPECT_NE(inspect((directory / "larger").string()).mixers.at(1).options.find("centroids 1024"), std::string::npos);

  const std::string empty = (directory / "empty").string();
  std::filesystem::create_directories(empty);
  EXPECT_EQ(message_of<std::runtime_error>([&] { inspect(empty); }), empty + " is not a model: it has no config.json");
  EXPECT_EQ(message_of<std::invalid_argument>([&] {
              inspect("paper/text-sw-ovg");
            }).find("unknown model preset or directory \"paper/text-sw-ovg\"; did you mean \"paper/text-sw-ovq\""),
            0u);
  std::ofstream(directory / "model" / "config.json") << [] {
    nlohmann::json config = to_json(model_preset("tiny/sw-ovq").config);
    config["mixers"]["ovq"]["kv_heads"] = 3;
    return config;
  }();
  EXPECT_EQ(message_of<std::runtime_error>([&] { inspect((directory / "model").string()); }),
            (directory / "model" / "config.json").string() + ": [ovq] kv_heads is 3; must divide heads 8");
}

}  // namespace
}  // namespace ovq::models::test
