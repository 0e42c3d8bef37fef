// Weights and states in bfloat16: the same as float32 with rounded weights, with half the memory.
#include "ovq/models/storage.h"

#include "ovq/models/chat.h"
#include "ovq/models/inspect.h"
#include "ovq/models/presets.h"
#include "ovq/models/weights.h"
#include "ovq/nn/projection.h"
#include "tests/models/fixtures.h"
#include "tests/ops/tensor_checks.h"

namespace ovq::models::test {
namespace {

using ops::test::close;

constexpr const char* kStoredPatterns[] = {"sw-ovq", "std-att",  "sw-vq",  "gdn",
                                           "mamba2", "mesa-net", "linear", "ovq-rope"};

ModelConfig small_config(const std::string& pattern) {
  ModelConfig config = model_preset("tiny/" + pattern).config;
  config.layers = 2;
  config.vocab_size = 256;
  return config;
}

// Rounds what store_bfloat16_weights rounds, and keeps it in float32.
void round_weights(LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  const std::shared_ptr<LanguageModel> other = make_model(model.config(), 1);
  assign_tensors(named_tensors(*other), named_tensors(model), "the model");
  other->store_bfloat16_weights();
  assign_tensors(named_tensors(model), named_tensors(*other), "the model");
}

Tensor some_tokens(int64_t time) { return (at::arange(time) * 37 + 11).remainder(256).view({1, time}); }

TEST(Storage, Bfloat16WeightsAreRoundedFloat32Weights) {
  for (const char* pattern : kStoredPatterns) {
    SCOPED_TRACE(pattern);
    const auto model = make_model(small_config(pattern), 3), narrow = make_model(small_config(pattern), 3);
    const int64_t bytes = model->weight_bytes();
    model->eval();
    narrow->eval();
    narrow->store_bfloat16_weights();
    round_weights(*model);
    const torch::NoGradGuard no_grad;
    const Tensor tokens = some_tokens(150);
    EXPECT_TRUE(close(narrow->forward(tokens), model->forward(tokens), 2e-5));
    ModelState state, narrow_state;
    EXPECT_TRUE(close(narrow->forward(tokens, narrow_state), model->forward(tokens, state), 2e-5));
    const Tensor next = some_tokens(3);
    EXPECT_TRUE(close(narrow->step(next, narrow_state), model->step(next, state), 2e-5));
    EXPECT_EQ(narrow->parameters().front().scalar_type(), at::kBFloat16);  // the embedding
    EXPECT_LT(narrow->weight_bytes(), 0.6 * static_cast<double>(bytes));
    EXPECT_EQ(narrow->weight_bytes(), inspect(narrow->config(), {}, {.weights = StateDtype::bfloat16}).weight_bytes);
  }
}

TEST(Storage, Bfloat16WeightsAreNotTrained) {
  const auto model = make_model(small_config("sw-ovq"), 3);
  model->store_bfloat16_weights();
  EXPECT_NE(message_of<std::invalid_argument>([&] { model->forward(some_tokens(9)); }).find("for inference"),
            std::string::npos);
}

// The tolerance: a key or value has a relative error of 2^-9, softmax weights follow, and a token between two centroids
// may join the other one.
TEST(Storage, Bfloat16StatesAreNear) {
  for (const char* pattern : {"sw-ovq", "std-att", "ovq-rope", "gdn"}) {
    SCOPED_TRACE(pattern);
    const auto model = make_model(small_config(pattern), 4);
    model->eval();
    const torch::NoGradGuard no_grad;
    ModelState wide, narrow(StateDtype::bfloat16);
    const Tensor tokens = some_tokens(300);
    model->hidden(tokens, wide);
    model->hidden(tokens, narrow);
    const Tensor next = some_tokens(1);
    const Tensor expected = model->logits(model->step(next, wide));
    const Tensor actual = model->logits(model->step(next, narrow));
    EXPECT_LT(((actual - expected).norm() / expected.norm()).item<double>(), 0.05);
    const bool shrinks = std::string(pattern) != "gdn";  // matrices stay float32
    EXPECT_EQ(at::equal(actual, expected), !shrinks);
    EXPECT_LT(static_cast<double>(narrow.nbytes()), (shrinks ? 0.95 : 1.01) * static_cast<double>(wide.nbytes()));
    EXPECT_LE(narrow.used_bytes(), narrow.nbytes());
    // Predicted for one pass, without the step's token.
    ModelState passed(StateDtype::bfloat16);
    model->hidden(tokens, passed);
    EXPECT_EQ(passed.nbytes(), model->state_bytes(300, StateDtype::bfloat16));
  }
}

TEST(Storage, PiecesAreOnePass) {
  const auto model = make_model(small_config("sw-ovq"), 5);
  model->eval();
  const torch::NoGradGuard no_grad;
  const Tensor tokens = some_tokens(280);
  ModelState whole(StateDtype::bfloat16), pieces(StateDtype::bfloat16);
  const Tensor all = model->hidden(tokens, whole);
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < 280; at += 35) parts.push_back(model->hidden(tokens.narrow(1, at, 35), pieces));
  EXPECT_TRUE(close(at::cat(parts, 1), all, 0.05));  // rounding may put a token to another centroid
}

class StoredSessions : public ScratchDirectory {
 protected:
  std::filesystem::path file() const { return directory / "state.ovq"; }
  static TextModel byte_model(StateDtype weights = StateDtype::float32) {
    TextModel model{.model = make_model(small_config("sw-ovq"), 6), .tokenizer = text::make_byte_tokenizer()};
    if (weights == StateDtype::bfloat16) model.model->store_bfloat16_weights();
    return model;
  }
  static std::string text_of(TextSession& session, int64_t tokens) {
    std::string text;
    session.write({.generate = {.tokens = tokens}, .each = [&](const WrittenToken& token) {
                     text += token.text;
                     return true;
                   }});
    return text;
  }
  const std::string prompt = std::string("bcde fgh").insert(0, 400, 'a');
};

TEST_F(StoredSessions, FilesKeepTheDtypeAndGoOn) {
  for (const StateDtype weights : {StateDtype::float32, StateDtype::bfloat16}) {
    TextSession session(byte_model(weights), StateDtype::bfloat16);
    session.read(prompt);
    session.save(file());
    const std::string expected = text_of(session, 30);
    TextSession second(byte_model(weights), StateDtype::bfloat16);
    second.load(file());
    EXPECT_EQ(text_of(second, 30), expected);
    EXPECT_EQ(ModelState::load(file()).dtype(), StateDtype::bfloat16);
    const Inspection predicted = inspect(small_config("sw-ovq"), {408}, {.states = StateDtype::bfloat16});
    EXPECT_NEAR(static_cast<double>(std::filesystem::file_size(file())),
                static_cast<double>(predicted.contexts[0].saved_bytes), 4096);
  }
}

TEST_F(StoredSessions, AStateIsConvertedToTheSessionsDtype) {
  TextSession wide(byte_model());
  wide.read(prompt);
  wide.save(file());
  TextSession narrow(byte_model(), StateDtype::bfloat16);
  narrow.load(file());
  narrow.read("x");
  wide.read("x");
  EXPECT_LT(narrow.state_bytes(), wide.state_bytes());
  narrow.save(file());
  TextSession again(byte_model());
  again.load(file());
  again.read("y");
  EXPECT_GT(again.state_bytes(), narrow.state_bytes());
  EXPECT_FALSE(text_of(again, 10).empty());
}

TEST_F(StoredSessions, OfOtherWeightsAreForeign) {
  TextSession wide(byte_model());
  wide.read(prompt);
  wide.save(file());
  TextSession narrow(byte_model(StateDtype::bfloat16));
  EXPECT_NE(message_of<std::runtime_error>([&] { narrow.load(file()); }).find("is the state of another model"),
            std::string::npos);
}

TEST_F(StoredSessions, TurnsThatAreTakenBackKeepTheDtype) {
  Chat chat(byte_model(), {}, StateDtype::bfloat16);
  const int64_t none = chat.session().state_bytes();
  chat.say("hello", {}, {.generate = {.tokens = 5}});
  const int64_t first = chat.session().state_bytes();
  chat.reset();
  EXPECT_EQ(chat.session().state_bytes(), none);
  chat.say("hello", {}, {.generate = {.tokens = 5}});
  EXPECT_EQ(chat.session().state_bytes(), first);
}

TEST(Storage, NamesOfDtypes) {
  EXPECT_EQ(enum_named<StateDtype>("bf16"), StateDtype::bfloat16);
  EXPECT_STREQ(std::string(name_of(StateDtype::bfloat16)).c_str(), "bfloat16");
}

}  // namespace
}  // namespace ovq::models::test
