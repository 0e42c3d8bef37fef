#include "ovq/train/text_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ovq/text/token_file.h"
#include "ovq/train/run.h"
#include "tests/train/runs.h"

namespace ovq::train {
namespace {

std::string prose(size_t size, int start) {
  std::string text;
  for (int i = start; text.size() < size; ++i) text += "word " + std::to_string(i * 7919 % 1000) + ", ";
  return text.substr(0, size);
}

class TextLosses : public testing::Test {
 protected:
  TextLosses() {
    std::filesystem::create_directories(books());
    std::ofstream(books() / "a.txt") << prose(700, 1);
    std::ofstream(books() / "b.txt") << prose(350, 9);
    models::ModelConfig config = models::config_from_json([] {
      json object = to_json(models::model_preset("tiny/sw-ovq").config);
      object.merge_patch(test::miniature("sw-ovq"));
      object["vocab_size"] = 256;
      return object;
    }());
    model_ = {.model = models::make_model(config, 3), .tokenizer = text::make_byte_tokenizer()};
    model_.model->eval();
  }
  std::filesystem::path books() const { return directory_.path() / "books"; }
  std::vector<std::string> data() const { return {books().string()}; }

  // Losses of a window's targets, in one pass.
  std::vector<double> plain(const std::string& text) const {
    const torch::NoGradGuard no_grad;
    const auto bytes = model_.tokenizer->encode(text);
    const at::Tensor tokens = torch::tensor(at::IntArrayRef(std::vector<int64_t>(bytes.begin(), bytes.end())));
    const int64_t count = tokens.size(0) - 1;
    const at::Tensor losses = at::cross_entropy_loss(model_.model->forward(tokens.narrow(0, 0, count).unsqueeze(0))[0],
                                                     tokens.narrow(0, 1, count), {}, at::Reduction::None);
    return {losses.data_ptr<float>(), losses.data_ptr<float>() + count};
  }

  test::TemporaryDirectory directory_;
  models::TextModel model_;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST_F(TextLosses, WholeDocumentsByPosition) {
  const TextLoss loss = text_loss(model_, data(), {.bin = 100, .piece = 64});
  EXPECT_EQ(loss.windows, 2);
  EXPECT_EQ(loss.total.targets, 699 + 349);
  ASSERT_EQ(loss.bins.size(), 7u);
  const std::vector<double> a = plain(prose(700, 1)), b = plain(prose(350, 9));
  EXPECT_EQ(loss.bins.at(0).targets, 200);
  EXPECT_EQ(loss.bins.at(6).targets, 99);
  EXPECT_NEAR(loss.bins.at(6).loss(), mean({a.begin() + 600, a.end()}), 1e-4);
  std::vector<double> both(a.begin() + 300, a.begin() + 400);
  both.insert(both.end(), b.begin() + 300, b.end());
  EXPECT_NEAR(loss.bins.at(3).loss(), mean(both), 1e-4);
  // Every byte but the first of each document is predicted.
  EXPECT_NEAR(loss.total.bits_per_byte(), loss.total.loss() / std::log(2.0), 1e-9);
}

TEST_F(TextLosses, WindowsSideBySideStartAnew) {
  const TextLoss loss = text_loss(model_, {(books() / "a.txt").string()}, {.length = 256, .bin = 256});
  EXPECT_EQ(loss.windows, 3);  // 256, 256, 187
  EXPECT_EQ(loss.total.targets, 699);
  std::vector<double> all;
  for (const size_t start : {0, 256, 512}) {
    for (const double value : plain(prose(700, 1).substr(start, 257))) all.push_back(value);
  }
  EXPECT_NEAR(loss.total.loss(), mean(all), 1e-4);
}

TEST_F(TextLosses, SlidingWindowsCountEveryTokenOnceAfterEnoughContext) {
  const TextLoss loss =
      text_loss(model_, {(books() / "a.txt").string()}, {.length = 256, .stride = 64, .bin = 64, .batch = 3});
  EXPECT_EQ(loss.total.targets, 699);
  EXPECT_EQ(loss.windows, 8);
  std::vector<double> last;
  for (size_t start = 0; start + 256 < 699 + 64; start += 64) {
    const std::vector<double> window = plain(prose(700, 1).substr(start, 257));
    if (window.size() > 192) last.insert(last.end(), window.begin() + 192, window.end());
  }
  EXPECT_EQ(loss.bins.at(3).targets, static_cast<int64_t>(last.size()));
  EXPECT_NEAR(loss.bins.at(3).loss(), mean(last), 1e-4);
}

TEST_F(TextLosses, FilesOfTokensAreTheSameText) {
  const std::string tokens = (directory_.path() / "x.tokens").string();
  text::write_token_file(tokens, *model_.tokenizer, data());
  const TextLoss expected = text_loss(model_, data(), {.length = 128});
  const TextLoss loss = text_loss(model_, {tokens}, {.length = 128, .batch = 1, .piece = 50});
  EXPECT_EQ(loss.total.targets, expected.total.targets);
  EXPECT_NEAR(loss.total.loss(), expected.total.loss(), 1e-5);
  EXPECT_EQ(loss.total.bytes, expected.total.bytes);
  EXPECT_EQ(text_loss(model_, data(), {.length = 128, .windows = 3}).windows, 3);
}

// "word" occurs every 9 or 8 bytes.
TEST_F(TextLosses, IdentifiersOfWindows) {
  EXPECT_FALSE(text_loss(model_, data(), {.length = 128}).identifiers);
  const TextLossOptions options{.length = 128, .batch = 3, .piece = 50, .identifiers = true};
  const TextLoss loss = text_loss(model_, {(books() / "a.txt").string()}, options);
  ASSERT_TRUE(loss.identifiers);
  const std::string text = prose(700, 1);
  IdentifierCounter counter(*model_.tokenizer);
  for (size_t start = 0; start < 699; start += 128) {
    const std::string window = text.substr(start, 129);
    const std::vector<double> losses = plain(window);
    counter.add(model_.tokenizer->encode(window), std::vector<float>(losses.begin(), losses.end()), 0);
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(loss.identifiers->bins[i].occurrences, 4);
    EXPECT_EQ(loss.identifiers->bins[i].occurrences, counter.result().bins[i].occurrences);
    EXPECT_NEAR(loss.identifiers->bins[i].loss(), counter.result().bins[i].loss(), 1e-3);
  }
  EXPECT_NE(to_table(loss).find("last spelled"), std::string::npos);
}

TEST_F(TextLosses, BadInput) {
  const auto error = [&](const TextLossOptions& options) -> std::string {
    try {
      text_loss(model_, data(), options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(error({.length = 64, .stride = 65}), "[eval] stride is 65; must be at most the length 64");
  EXPECT_EQ(error({.stride = 5}), "[eval] stride is 5; must be at most the length 0");
  EXPECT_EQ(error({.bin = 0}), "[eval] bin is 0; must be at least 1");
  EXPECT_THROW(text_loss(model_, {"none"}, {}), std::runtime_error);
  EXPECT_THROW(text_loss(model_, data(), {}, [] { return true; }), std::runtime_error);
}

// A run on text saves models that need no other files.
TEST_F(TextLosses, CheckpointsHaveTheTokenizer) {
  RunOptions options = test::mini_run("recall", "sw-ovq");
  options.task = "text";
  options.task_options = {
      {"train", (books() / "a.txt").string()}, {"test", (books() / "b.txt").string()}, {"min_document", 50}};
  options.steps = 5;
  const std::filesystem::path path = directory_.path() / "run";
  Trainer(Run::create(path, resolved(options)), {}).train();
  const models::TextModel model = models::load_text_model(newest_checkpoint(path));
  EXPECT_EQ(model.tokenizer->identity(), "bytes");
  EXPECT_GT(text_loss(model, data(), {}).total.loss(), 0);
}

}  // namespace
}  // namespace ovq::train
