#include "ovq/train/identifier_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "ovq/base/error.h"
#include "ovq/base/table.h"

namespace ovq::train {
namespace {

constexpr size_t kShortest = 4;  // characters of an identifier

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; }

double ratio(double sum, int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

}  // namespace

double IdentifierBin::loss() const { return ratio(loss_sum, occurrences); }
double IdentifierBin::loss_of_token() const { return ratio(loss_sum, tokens); }

size_t IdentifierLoss::bin_of(int64_t distance) {
  return 1 + static_cast<size_t>(std::lower_bound(kFarthest.begin(), kFarthest.end(), distance) - kFarthest.begin());
}

std::string IdentifierLoss::bin_name(size_t bin) {
  if (bin == 0) return "first";
  const int64_t nearest = bin == 1 ? 1 : kFarthest.at(bin - 2) + 1;
  return bin > kFarthest.size() ? fmt::format("{} or more", nearest)
                                : fmt::format("{} - {}", nearest, kFarthest.at(bin - 1));
}

IdentifierCounter::IdentifierCounter(const text::Tokenizer& tokenizer) {
  for (int64_t token = 0; token < tokenizer.vocab(); ++token)
    bytes_.push_back(tokenizer.token_bytes(static_cast<int32_t>(token)));
}

void IdentifierCounter::add(std::span<const int32_t> tokens, std::span<const float> losses, int64_t first) {
  check(tokens.size() == losses.size() + 1, "identifiers", tokens.size(), " tokens and ", losses.size(),
        " losses; expected one token more than losses");
  std::string text;
  std::vector<int64_t> token_of;  // each byte
  for (size_t i = 0; i < tokens.size(); ++i) {
    text += bytes_.at(static_cast<size_t>(tokens[i]));
    token_of.resize(text.size(), static_cast<int64_t>(i));
  }
  std::unordered_map<std::string_view, int64_t> last;  // first token of the last occurrence
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    if (begin == 0 || end == text.size() || end - begin < kShortest || is_digit(text[begin])) continue;
    const int64_t from = token_of[begin], to = token_of[end - 1];
    const auto [known, is_first] = last.try_emplace(std::string_view(text).substr(begin, end - begin), from);
    const size_t bin = is_first ? 0 : IdentifierLoss::bin_of(from - known->second);
    known->second = from;
    if (from - 1 < first) continue;
    ++result_.bins[bin].occurrences;
    result_.bins[bin].tokens += to - from + 1;
    for (int64_t i = from; i <= to; ++i) result_.bins[bin].loss_sum += losses[static_cast<size_t>(i - 1)];
  }
}

std::string to_table(const IdentifierLoss& loss) {
  Table table({{.title = "last spelled", .width = 16, .gap = 0},
               {.title = "identifiers", .width = 11},
               {.title = "tokens", .width = 8},
               {.title = "loss", .width = 8},
               {.title = "of a token", .width = 10}});
  for (size_t i = 0; i < loss.bins.size(); ++i) {
    const IdentifierBin& bin = loss.bins[i];
    if (bin.occurrences == 0) continue;
    table.add({IdentifierLoss::bin_name(i), std::to_string(bin.occurrences), std::to_string(bin.tokens),
               fmt::format("{:.4f}", bin.loss()), fmt::format("{:.4f}", bin.loss_of_token())});
  }
  return table.text();
}

nlohmann::json to_json(const IdentifierLoss& loss) {
  nlohmann::json list = nlohmann::json::array();
  for (size_t i = 0; i < loss.bins.size(); ++i) {
    const IdentifierBin& bin = loss.bins[i];
    const bool empty = bin.occurrences == 0;  // there is no mean
    list.push_back({{"last_spelled", IdentifierLoss::bin_name(i)},
                    {"identifiers", bin.occurrences},
                    {"tokens", bin.tokens},
                    {"loss", empty ? nlohmann::json() : nlohmann::json(bin.loss())},
                    {"loss_of_token", empty ? nlohmann::json() : nlohmann::json(bin.loss_of_token())}});
  }
  return list;
}

}  // namespace ovq::train
