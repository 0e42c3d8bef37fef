// Whole models: weights and states on disk, generation.
#include "ovq/models/language_model.h"

#include <torch/nn/utils/convert_parameters.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ovq/models/generate.h"
#include "ovq/models/presets.h"
#include "ovq/models/weights.h"
#include "tests/models/fixtures.h"

namespace ovq::models::test {
namespace {

const char* const kPatterns[] = {"std-att", "sw-nope", "sw-vq",    "sw-ovq", "ovq-rope",
                                 "gdn-ovq", "mamba2",  "mesa-net", "linear"};

std::shared_ptr<LanguageModel> tiny(const std::string& pattern, uint64_t seed = 1) {
  ModelConfig config = model_preset("tiny/" + pattern).config;
  config.layers = 2;
  auto model = make_model(config, seed);
  model->eval();
  return model;
}

Tensor some_tokens(int64_t batch, int64_t time) {
  torch::manual_seed(5);
  return at::randint(128, {batch, time}, at::kLong);
}

void expect_same_bits(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(actual.isfinite().all().item<bool>());
  EXPECT_TRUE(at::equal(actual, expected));
}

class LanguageModelFiles : public ScratchDirectory {};

TEST_F(LanguageModelFiles, SaveLoadContinue) {
  const torch::NoGradGuard no_grad;
  for (const char* pattern : kPatterns) {
    SCOPED_TRACE(pattern);
    const auto model = tiny(pattern);
    model->set_centroids(40);
    save_model(*model, directory / pattern);
    const auto loaded = load_model(directory / pattern);
    loaded->eval();
    EXPECT_EQ(to_json(loaded->config()), to_json(model->config()));
    const Tensor tokens = some_tokens(2, 150);
    expect_same_bits(loaded->forward(tokens), model->forward(tokens));

    ModelState state;
    model->forward(tokens.slice(1, 0, 100), state);
    state.save(directory / "state.safetensors");
    ModelState continued = ModelState::load(directory / "state.safetensors");
    EXPECT_EQ(continued.position(), 100);
    ModelState copy = state.clone();
    for (int64_t t = 100; t < 150; ++t) {
      const Tensor next = tokens.slice(1, t, t + 1), expected = model->forward(next, state);
      expect_same_bits(loaded->forward(next, continued), expected);
      expect_same_bits(model->forward(next, copy), expected);
    }
  }
}

TEST_F(LanguageModelFiles, DamagedWeightsAreErrors) {
  const auto model = tiny("sw-ovq");
  save_model(*model, directory);
  const std::filesystem::path file = directory / "model.safetensors";
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto error_with = [&](const std::string& damaged) {
    std::ofstream(file, std::ios::binary) << damaged;
    return message_of<std::runtime_error>([&] { load_model(directory); });
  };
  EXPECT_EQ(error_with(bytes), "nothing thrown");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_TRUE(error_with(bytes.substr(0, size)).find(file.string()) != std::string::npos) << size << " bytes";
  }
  for (const size_t at : {size_t{0}, size_t{3}, size_t{7}, size_t{8}, size_t{20}, bytes.size() / 2, bytes.size() - 1}) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_TRUE(error_with(flipped).find(file.string()) != std::string::npos) << "byte " << at;
  }
  EXPECT_TRUE(error_with(bytes + "more").find(file.string()) != std::string::npos);
}

TEST_F(LanguageModelFiles, OtherModelsWeightsAreErrors) {
  save_model(*tiny("sw-ovq"), directory);
  const std::filesystem::path file = directory / "model.safetensors";
  const NamedTensors right = load_tensors(file).tensors;
  const auto error_with = [&](const NamedTensors& tensors) {
    save_tensors(file, tensors);
    return message_of<std::runtime_error>([&] { load_model(directory); });
  };
  EXPECT_EQ(error_with(right), "nothing thrown");
  NamedTensors lacking = right, more = right, reshaped = right;
  lacking.erase("norm.weight");
  EXPECT_EQ(error_with(lacking), file.string() + " lacks norm.weight");
  more["layers.7.norm"] = at::ones({2});
  EXPECT_EQ(error_with(more), file.string() + " holds layers.7.norm, which the model lacks");
  reshaped["norm.weight"] = at::ones({63});
  EXPECT_EQ(error_with(reshaped), file.string() + ": norm.weight is [63]; the model's is [64]");
  EXPECT_EQ(message_of<std::runtime_error>([&] { load_model(directory / "none"); }),
            (directory / "none").string() + " is not a directory with a model");
  // Options that are valid by themselves but not together.
  nlohmann::json config = to_json(tiny("sw-ovq")->config());
  config["mixers"]["ovq"]["kv_heads"] = 3;
  std::ofstream(directory / "config.json") << config;
  EXPECT_EQ(message_of<std::runtime_error>([&] { load_model(directory); }),
            (directory / "config.json").string() + ": [ovq] kv_heads is 3; must divide heads 8");
}

TEST_F(LanguageModelFiles, DamagedStatesAreErrors) {
  const auto model = tiny("sw-ovq");
  const torch::NoGradGuard no_grad;
  ModelState state;
  model->forward(some_tokens(1, 70), state);
  const std::filesystem::path file = directory / "state.safetensors";
  state.save(file);
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto load = [&] { return message_of<std::runtime_error>([&] { ModelState::load(file); }); };
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 40) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    std::ofstream(file, std::ios::binary) << flipped;
    EXPECT_TRUE(load().find(file.string()) != std::string::npos) << "byte " << at << ": " << load();
  }
  save_tensors(file, {{"x", at::ones({3})}});
  EXPECT_EQ(load(), file.string() + " is not a model's state: no valid ovq.state_layers");
  save_tensors(file, {{"x", at::ones({3})}}, {{"ovq.state_layers", "1000000000000"}});
  EXPECT_EQ(load(), file.string() + " is not a model's state: no valid layers.0.position");
  save_tensors(file, {{"layers.0.ovq", at::ones({3}).to(at::kByte)}},
               {{"ovq.state_layers", "1"}, {"layers.0.position", "4"}});
  EXPECT_TRUE(load().starts_with(file.string() + ": layers.0.ovq: ")) << load();
  ModelState two;
  two.layers.resize(3);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { model->forward(some_tokens(1, 1), two); }),
            "[model] state has 3 layers; must have 2");
}

TEST(LanguageModel, StateOfACallThatFailedHalfway) {
  const auto model = tiny("sw-ovq");
  const torch::NoGradGuard no_grad;
  ModelState state;
  model->forward(some_tokens(1, 20), state);
  ModelState before = state.clone();
  auto parameters = model->named_parameters();
  Tensor& weight = parameters["layers.1.mixer.q_proj.weight"];
  const Tensor good = weight.detach().clone();
  weight.set_data(at::zeros({3, 3}));
  EXPECT_ANY_THROW(model->step(some_tokens(1, 1), state));
  weight.set_data(good);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { model->step(some_tokens(1, 1), state); }),
            "[model] state's layers have read 21 and 20 tokens; must have read the same number. This happens "
            "when an earlier call failed halfway");
  EXPECT_NO_THROW(model->step(some_tokens(1, 1), before));
}

TEST(LanguageModel, PackedEqualsAlone) {
  const torch::NoGradGuard no_grad;
  for (const char* pattern : kPatterns) {
    const auto model = tiny(pattern);
    const Tensor tokens = some_tokens(1, 100);
    const Tensor packed = model->forward(tokens, at::tensor({0, 1, 40, 100}));
    const Tensor alone = at::cat({model->forward(tokens.slice(1, 0, 1)), model->forward(tokens.slice(1, 1, 40)),
                                  model->forward(tokens.slice(1, 40))},
                                 1);
    EXPECT_TRUE(at::allclose(packed, alone, 1e-3, 1e-4)) << pattern;
  }
}

TEST(LanguageModel, WeightsFollowTheSeed) {
  const auto parameters = [](uint64_t seed) {
    return torch::nn::utils::parameters_to_vector(tiny("sw-ovq", seed)->parameters());
  };
  EXPECT_TRUE(at::equal(parameters(3), parameters(3)));
  EXPECT_FALSE(at::equal(parameters(3), parameters(4)));
}

TEST(LanguageModel, StateBytesArePredicted) {
  const torch::NoGradGuard no_grad;
  for (const char* pattern : kPatterns) {
    const auto model = tiny(pattern);
    for (auto& buffer : model->named_buffers()) {
      if (buffer.key().ends_with(".started")) buffer.value().fill_(1);  // after the warm-up of vq
    }
    ModelState state;
    model->forward(some_tokens(1, 200), state);
    EXPECT_EQ(state.nbytes(), model->state_bytes(200)) << pattern;
    EXPECT_EQ(state.clone().position(), 200);
  }
}

std::vector<int64_t> some_prompt() {
  const Tensor tokens = some_tokens(1, 100);
  return {tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + 100};
}

TEST(Generate, DeterministicAndIndependentOfThePieces) {
  for (const char* pattern : {"sw-ovq", "sw-nope", "gdn-ovq"}) {
    const auto model = tiny(pattern);
    for (const double temperature : {0.0, 4.0}) {
      GenerateOptions options{.tokens = 30, .sampling = {.temperature = temperature, .top_k = 20, .seed = 4}};
      const auto generated = [&] {
        ModelState state;
        return generate(*model, state, some_prompt(), options);
      };
      const std::vector<int64_t> first = generated();
      EXPECT_EQ(first.size(), 30u);
      EXPECT_EQ(generated(), first);
      for (const int64_t piece : {1, 7, 32, 100}) {
        options.piece = piece;
        EXPECT_EQ(generated(), first) << pattern << " in pieces of " << piece;
      }
      options.sampling.seed = 5;
      if (temperature > 0) {
        EXPECT_NE(generated(), first);
      }
    }
  }
}

// What OVQ reads does not depend on how the prompt is split, bit for bit; the matrix products around it may round.
TEST(Generate, PiecesLeaveTheSameDictionary) {
  const auto model = tiny("sw-ovq");
  const Tensor tokens = some_tokens(1, 130).to(at::kInt);
  const auto read = [&](ModelState& state, int64_t piece) {
    Session session(*model, state);
    EXPECT_EQ(session.read({tokens.data_ptr<int32_t>(), 130}, {.piece = piece}), 130);
    return session.continuation().logits;
  };
  ModelState whole;
  const Tensor expected = read(whole, 130);
  for (const int64_t piece : {16, 33, 64}) {
    ModelState state;
    EXPECT_TRUE(at::allclose(read(state, piece), expected, 1e-4, 1e-5));
    EXPECT_EQ(state.position(), 130);
    EXPECT_TRUE(at::equal(state.layers[1].ovq->counts(), whole.layers[1].ovq->counts()));
  }
}

TEST(Generate, EachTokenIsSeenAndMayBeTheLast) {
  const auto model = tiny("sw-ovq");
  ModelState state;
  std::vector<int64_t> seen;
  const auto tokens = generate(*model, state, some_prompt(), {.tokens = 20}, [&](int64_t token) {
    seen.push_back(token);
    return seen.size() < 5;
  });
  EXPECT_EQ(tokens, seen);
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(state.position(), 104);
  // and continues from there as if it had not stopped
  ModelState other;
  const auto all = generate(*model, other, some_prompt(), {.tokens = 10});
  const auto rest = generate(*model, state, {seen.back()}, {.tokens = 5});
  EXPECT_EQ(std::vector<int64_t>(all.begin() + 5, all.end()), rest);
}

TEST(Generate, ErrorsNameTheOption) {
  const auto model = tiny("sw-ovq");
  const auto error = [&](const std::vector<int64_t>& prompt, const GenerateOptions& options) {
    ModelState state;
    return message_of<std::invalid_argument>([&] { generate(*model, state, prompt, options); });
  };
  EXPECT_EQ(error({}, {}), "[generate] prompt is empty; must have at least one token");
  EXPECT_EQ(error({128}, {}), "[generate] prompt has token 128; the vocabulary has 128");
  EXPECT_EQ(error({-1}, {}), "[generate] prompt has token -1; the vocabulary has 128");
  EXPECT_EQ(error({1}, {.sampling = {.temperature = -1}}), "[generate] temperature is -1; must be at least 0");
  EXPECT_EQ(error({1}, {.sampling = {.top_k = -1}}), "[generate] top_k is -1; must be at least 1, or 0 for all");
  EXPECT_EQ(error({1}, {.piece = 0}), "[generate] piece is 0; must be at least 1");
}

TEST(Initializer, CopyingTransposesWhatReads) {
  ModelConfig config = model_preset("tiny/sw-ovq-plain").config;
  for (const Initializer initializer : {Initializer::fan_in, Initializer::copying}) {
    config.initializer = initializer;
    const auto model = make_model(config, 1);
    const auto parameters = model->named_parameters();
    const bool copying = initializer == Initializer::copying;
    const Tensor embed = parameters["embed.weight"], head = parameters["head.weight"];
    EXPECT_EQ(at::allclose(head, embed / std::sqrt(64.0)), copying);
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      const Tensor v = parameters[layer + "mixer.v_proj.weight"], o = parameters[layer + "mixer.o_proj.weight"];
      EXPECT_EQ(at::allclose(o, v.t() / std::sqrt(8.0)), copying);
      EXPECT_NEAR(o.std().item<double>(), 1 / 8.0 / std::sqrt(8.0), 0.1 / 8.0);
    }
    EXPECT_NEAR(head.std().item<double>(), 1 / 8.0, 0.1 / 8.0);
  }
}

}  // namespace
}  // namespace ovq::models::test
