// Identifiers of random code, counted by regular expressions over its text.
#include "ovq/train/identifier_loss.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <regex>

namespace ovq::train {
namespace {

// Tokens of up to three characters, and one that stands for no text, like those that begin a document.
class PieceTokenizer final : public text::Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  int64_t vocab() const override { return static_cast<int64_t>(pieces_.size()); }
  std::vector<int32_t> encode(std::string_view, text::Place) const override { return {}; }
  std::string decode(const std::vector<int32_t>&) const override { return {}; }
  std::string token_name(int32_t token) const override { return token_bytes(token); }
  std::string token_bytes(int32_t token) const override { return pieces_.at(static_cast<size_t>(token)); }

 private:
  std::vector<std::string> pieces_;
};

const PieceTokenizer& tokenizer() {
  static const PieceTokenizer pieces({"", "ab", "c_1", "x", ".y", " ", "é", "0", "Q(z", "_"});
  return pieces;
}

// The definition, literally: every identifier looks back through all before it.
IdentifierLoss reference(const std::vector<int32_t>& tokens, const std::vector<float>& losses, int64_t first) {
  std::string text;
  std::vector<int64_t> starts;  // of tokens in the text
  for (const int32_t token : tokens) {
    starts.push_back(static_cast<int64_t>(text.size()));
    text += tokenizer().token_bytes(token);
  }
  const auto token_at = [&](int64_t byte) {
    int64_t token = static_cast<int64_t>(tokens.size()) - 1;
    while (starts[static_cast<size_t>(token)] > byte) --token;
    return token;
  };
  struct Found {
    std::string name;
    int64_t from, to;
  };
  std::vector<Found> all;
  static const std::regex runs("[A-Za-z0-9_]+"), identifier("[A-Za-z_][A-Za-z0-9_]{3,}");
  for (std::sregex_iterator run(text.begin(), text.end(), runs), end; run != end; ++run) {
    if (run->position() == 0 || run->position() + run->length() == static_cast<int64_t>(text.size())) continue;
    if (!std::regex_match(run->str(), identifier)) continue;
    all.push_back({run->str(), token_at(run->position()), token_at(run->position() + run->length() - 1)});
  }
  IdentifierLoss result;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].from <= first) continue;
    size_t bin = 0;
    for (size_t j = 0; j < i; ++j) {
      const int64_t distance = all[i].from - all[j].from;
      if (all[j].name == all[i].name)
        bin = distance <= 64 ? 1 : distance <= 256 ? 2 : distance <= 1024 ? 3 : distance <= 4096 ? 4 : 5;
    }
    ++result.bins[bin].occurrences;
    for (int64_t token = all[i].from; token <= all[i].to; ++token) {
      ++result.bins[bin].tokens;
      result.bins[bin].loss_sum += losses[static_cast<size_t>(token - 1)];
    }
  }
  return result;
}

TEST(Identifiers, AreThoseOfTheDefinition) {
  std::mt19937 random(7);
  for (const int64_t length : {1, 2, 30, 3000, 12000}) {
    std::vector<int32_t> tokens;
    std::vector<float> losses;
    for (int64_t i = 0; i <= length; ++i) tokens.push_back(static_cast<int32_t>(random() % 10));
    for (int64_t i = 0; i < length; ++i) losses.push_back(static_cast<float>(random() % 1000) / 100);
    for (const int64_t first : {int64_t{0}, length / 3}) {
      IdentifierCounter counter(tokenizer());
      counter.add(tokens, losses, first);
      const IdentifierLoss expected = reference(tokens, losses, first);
      for (size_t i = 0; i < expected.bins.size(); ++i) {
        EXPECT_EQ(counter.result().bins[i].occurrences, expected.bins[i].occurrences) << length << " " << i;
        EXPECT_EQ(counter.result().bins[i].tokens, expected.bins[i].tokens) << length << " " << i;
        EXPECT_NEAR(counter.result().bins[i].loss_sum, expected.bins[i].loss_sum, 1e-6) << length << " " << i;
      }
      EXPECT_TRUE(length < 12000 || expected.bins[4].occurrences > 0);
    }
  }
}

TEST(Identifiers, ByHand) {
  const auto bytes = text::make_byte_tokenizer();
  const std::string text = "cut total = 0x1fab + abc + total; (rest";
  const std::vector<int32_t> tokens = bytes->encode(text);
  std::vector<float> losses(tokens.size() - 1, 1);
  losses[4 - 1] = 11;  // the first "t" of total
  IdentifierCounter counter(*bytes);
  counter.add(tokens, losses, 0);
  const auto& bins = counter.result().bins;
  EXPECT_EQ(bins[0].occurrences, 1);  // neither "0x1fab", which is a number, nor "abc", nor "rest", which may go on
  EXPECT_EQ(bins[0].tokens, 5);
  EXPECT_EQ(bins[0].loss(), 15);
  EXPECT_EQ(bins[0].loss_of_token(), 3);
  EXPECT_EQ(bins[1].occurrences, 1);
  EXPECT_EQ(bins[1].loss(), 5);
  counter.add(tokens, losses, 4);  // another window knows nothing of the first; the identifier begins too early
  EXPECT_EQ(bins[0].occurrences, 1);
  EXPECT_EQ(bins[1].occurrences, 2);
  EXPECT_THROW(counter.add(tokens, {losses.data(), 3}, 0), std::invalid_argument);
}

TEST(Identifiers, AnEmptyBinHasNoLoss) {
  IdentifierLoss loss;
  loss.bins[1] = {.occurrences = 2, .tokens = 4, .loss_sum = 3};
  const nlohmann::json bins = to_json(loss);
  EXPECT_EQ(bins[1].at("loss"), 1.5);
  EXPECT_EQ(bins[1].at("loss_of_token"), 0.75);
  for (const char* name : {"loss", "loss_of_token"}) EXPECT_TRUE(bins[0].at(name).is_null()) << name;
}

TEST(Identifiers, BinsAndTheirNames) {
  EXPECT_EQ(IdentifierLoss::bin_of(1), 1u);
  EXPECT_EQ(IdentifierLoss::bin_of(64), 1u);
  EXPECT_EQ(IdentifierLoss::bin_of(65), 2u);
  EXPECT_EQ(IdentifierLoss::bin_of(4096), 4u);
  EXPECT_EQ(IdentifierLoss::bin_of(4097), 5u);
  std::vector<std::string> names;
  for (const auto& bin : to_json(IdentifierLoss())) names.push_back(bin.at("last_spelled"));
  EXPECT_EQ(names,
            (std::vector<std::string>{"first", "1 - 64", "65 - 256", "257 - 1024", "1025 - 4096", "4097 or more"}));
}

}  // namespace
}  // namespace ovq::train
