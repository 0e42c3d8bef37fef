#include "ovq/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>

#include "ovq/base/error.h"
#include "ovq/base/random.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr std::string_view kMark = "\xe2\x96\x81";  // ▁, which stands for a space
constexpr size_t kFewTokens = 48;                   // up to here, looking at every pair is faster than a heap

uint64_t folded(uint64_t a, uint64_t b) { return mix_bits(a ^ b * kGoldenRatio); }

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = bytes.size();
  uint64_t word = 0;
  for (; bytes.size() >= sizeof(word); bytes.remove_prefix(sizeof(word))) {
    std::memcpy(&word, bytes.data(), sizeof(word));
    hash = folded(hash, word);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return folded(hash, word);
}

// 1 to 32 bytes as numbers, which together with the size are different for different words. Loads overlap.
std::array<uint64_t, 4> loaded(std::string_view word) {
  const auto load = [&](size_t at, auto number) -> uint64_t {
    std::memcpy(&number, word.data() + at, sizeof(number));
    return number;
  };
  const size_t size = word.size();
  if (size < 4) return {load(0, uint8_t{}) | load(size / 2, uint8_t{}) << 8 | load(size - 1, uint8_t{}) << 16};
  if (size < 8) return {load(0, uint32_t{}) | load(size - 4, uint32_t{}) << 32};
  const uint64_t last = load(size - 8, uint64_t{});
  if (size <= 16) return {load(0, uint64_t{}), last};
  if (size <= 24) return {load(0, uint64_t{}), load(8, uint64_t{}), last};
  return {load(0, uint64_t{}), load(8, uint64_t{}), load(16, uint64_t{}), last};
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// GPT-2's table: printable characters stand for themselves, the other bytes for those from U+0100 on, in order.
struct ByteAlphabet {
  std::array<char32_t, 256> characters = {};
  std::array<int16_t, 512> bytes = {};

  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      characters[static_cast<size_t>(byte)] = itself ? static_cast<char32_t>(byte) : next++;
      bytes[characters[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
    }
  }
};
const ByteAlphabet kAlphabet;

// How the vocabulary spells the unit of a word that begins with this byte.
std::string spelled_byte(uint8_t byte) {
  std::string text;
  append_code_point(text, kAlphabet.characters[byte]);
  return text;
}

// Adds the characters other than ▁ that stand before a ▁ in the text.
void add_before_marks(std::string_view text, std::vector<char32_t>& characters) {
  for (size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + kMark.size())) {
    if (at > 0 && !text.substr(0, at).ends_with(kMark)) characters.push_back(last_code_point(text.substr(0, at)).value);
  }
}

}  // namespace

int byte_of_character(char32_t character) {
  return character < kAlphabet.bytes.size() ? kAlphabet.bytes[character] : -1;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const CodePoint next = first_code_point(token);
    const int byte = byte_of_character(next.value);
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    token.remove_prefix(next.size);
  }
  return bytes;
}

void StringTable::reserve(size_t strings) { slots_.assign(std::bit_ceil(2 * strings + 1), {}); }

size_t StringTable::slot_of(std::string_view string) const {
  size_t slot = hash_of(string) & (slots_.size() - 1);
  while (slots_[slot].number >= 0 && slots_[slot].string != string) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

bool StringTable::add(std::string_view string, int32_t number) {
  Slot& slot = slots_[slot_of(string)];
  if (slot.number >= 0) return false;
  slot = {string, number};
  return true;
}

std::optional<int32_t> StringTable::find(std::string_view string) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[slot_of(string)];
  return slot.number < 0 ? std::nullopt : std::optional<int32_t>(slot.number);
}

WordCache::Word& WordCache::at(std::string_view word, bool& known) {
  if (slots_.empty()) slots_.resize(kSlots);
  const std::array<uint64_t, 4> bytes = loaded(word);
  const uint64_t hash = folded(folded(bytes[0] + word.size(), bytes[1]), folded(bytes[2], bytes[3]));
  Word& slot = slots_[hash & (kSlots - 1)];
  known = slot.size == word.size() && slot.bytes == bytes;
  if (!known) {
    slot.bytes = bytes;
    slot.size = static_cast<uint8_t>(word.size());
    slot.count = 0;
  }
  return slot;
}

Bpe::Bpe(const TokenizerSource& source, const BpeOptions& options) : options_(options) {
  add_tokens(source);
  add_merges(source);
  prepare_units();
}

void Bpe::add_tokens(const TokenizerSource& source) {
  int64_t greatest = -1;
  for (const auto& [token, id] : source.vocab) {
    if (id < 0 || id >= kMostTokens)
      refuse_format("model.vocab: ", in_quotes(source.view(token)), " is ", id, "; must be within 0 and ",
                    kMostTokens - 1);
    greatest = std::max(greatest, id);
  }
  if (greatest < 0) refuse_format("model.vocab has no tokens");
  characters_.reserve(source.characters.size());  // views stay valid
  tokens_.resize(static_cast<size_t>(greatest + 1));
  numbers_.reserve(source.vocab.size());
  for (const auto& [span, id] : source.vocab) {
    const std::string_view token = source.view(span);
    std::string_view& place = tokens_[static_cast<size_t>(id)];
    if (place.data() != nullptr)
      refuse_format("model.vocab: ", in_quotes(place), " and ", in_quotes(token), " both are ", id);
    const size_t start = characters_.size();
    characters_ += token;
    place = {characters_.data() + start, token.size()};
    if (!numbers_.add(place, static_cast<int32_t>(id))) refuse_format("model.vocab has ", in_quotes(token), " twice");
  }
  token_count_ = static_cast<int64_t>(source.vocab.size());
}

void Bpe::add_merges(const TokenizerSource& source) {
  const size_t slots = std::bit_ceil(2 * source.merges.size() + 1);
  merges_.assign(slots, {});
  std::string joined;
  const auto number_of = [&](std::string_view token, size_t merge) {
    const auto number = numbers_.find(token);
    if (!number)
      refuse_format("model.merges[", merge, "] needs the token ", in_quotes(token), ", which is not in model.vocab");
    return *number;
  };
  for (size_t i = 0; i < source.merges.size(); ++i) {
    const std::string_view left = source.view(source.merges[i].left), right = source.view(source.merges[i].right);
    if (left.empty() || right.empty()) refuse_format("model.merges[", i, "] has an empty token");
    joined.assign(left).append(right);
    if (!options_.byte_level) add_before_marks(joined, before_marks_);
    const int32_t left_number = number_of(left, i), right_number = number_of(right, i);
    const Merge merge{
        .pair = pair_of(left_number, right_number), .rank = static_cast<uint32_t>(i), .token = number_of(joined, i)};
    size_t slot = mix_bits(merge.pair) & (slots - 1);
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != merge.pair) slot = (slot + 1) & (slots - 1);
    merges_[slot] = merge;  // of two with the same pair, the last
  }
  std::sort(before_marks_.begin(), before_marks_.end());
  before_marks_.erase(std::unique(before_marks_.begin(), before_marks_.end()), before_marks_.end());
  splits_at_marks_ = !options_.byte_level && !options_.ignore_merges && numbers_.find(kMark).has_value();
}

void Bpe::prepare_units() {
  if (options_.unknown) {
    const auto unknown = numbers_.find(*options_.unknown);
    if (!unknown) refuse_format("model.unk_token is ", in_quotes(*options_.unknown), ", which is not in model.vocab");
    unknown_ = *unknown;
  }
  for (int i = 0; i < 256; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    const std::string unit = options_.byte_level ? spelled_byte(byte) : std::string(1, static_cast<char>(byte));
    byte_tokens_[byte] = options_.byte_level || byte < 0x80 ? numbers_.find(unit).value_or(-1) : -1;
    std::array<char, 8> name;
    std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(byte));
    fallback_tokens_[byte] = options_.byte_fallback ? numbers_.find(name.data()).value_or(-1) : -1;
  }
  if (!options_.byte_level || !options_.ignore_merges) return;
  bytes_.reserve(characters_.size());  // views stay valid
  byte_words_.reserve(tokens_.size());
  for (size_t token = 0; token < tokens_.size(); ++token) {
    const auto bytes = tokens_[token].data() == nullptr ? std::nullopt : bytes_of_token(tokens_[token]);
    if (!bytes) continue;
    const size_t start = bytes_.size();
    bytes_ += *bytes;
    byte_words_.add({bytes_.data() + start, bytes->size()}, static_cast<int32_t>(token));
  }
}

inline const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = mix_bits(pair) & mask;; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& tokens, Space& space) const {
  const auto joins = [&](char32_t character) {
    return std::binary_search(before_marks_.begin(), before_marks_.end(), character);
  };
  for (size_t at = 1; splits_at_marks_ && (at = word.find(kMark, at)) != std::string_view::npos;) {
    const std::string_view before = word.substr(0, at);
    if (before.ends_with(kMark) || joins(last_code_point(before).value)) {
      at += kMark.size();
      continue;
    }
    encode_part(before, tokens, space);
    word.remove_prefix(at);
    at = 1;
  }
  encode_part(word, tokens, space);
}

void Bpe::encode_part(std::string_view word, std::vector<int32_t>& tokens, Space& space) const {
  if (word.size() > WordCache::Word::kBytes) {
    encode_uncached(word, tokens, space);
    return;
  }
  bool known = false;
  WordCache::Word& kept = space.cache.at(word, known);
  if (known) {
    tokens.insert(tokens.end(), kept.tokens.begin(), kept.tokens.begin() + kept.count);
    return;
  }
  const size_t before = tokens.size();
  kept.size = 0;  // until its tokens are there
  encode_uncached(word, tokens, space);
  const size_t count = tokens.size() - before;
  if (count > kept.tokens.size()) return;
  std::copy(tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end(), kept.tokens.begin());
  kept.count = static_cast<uint8_t>(count);
  kept.size = static_cast<uint8_t>(word.size());
}

void Bpe::encode_uncached(std::string_view word, std::vector<int32_t>& tokens, Space& space) const {
  check(word.size() <= std::numeric_limits<int32_t>::max(), "tokenizer", "the text has a word of ", word.size(),
        " bytes; at most ", std::numeric_limits<int32_t>::max(), " can be encoded");
  if (options_.ignore_merges) {
    if (const auto token = (options_.byte_level ? byte_words_ : numbers_).find(word)) {
      tokens.push_back(*token);
      return;
    }
  }
  space.tokens.clear();
  append_units(word, space.tokens);
  if (space.tokens.size() <= kFewTokens) {
    merge_few(space.tokens);
  } else {
    merge_many(space.tokens, space);
  }
  tokens.insert(tokens.end(), space.tokens.begin(), space.tokens.end());
}

// The tokens of characters or bytes, before any merge. An unknown token waits for the next known one; tokens of bytes
// do not count as such.
void Bpe::append_units(std::string_view word, std::vector<int32_t>& tokens) const {
  bool unknown_waits = false;
  while (!word.empty()) {
    const auto byte = static_cast<uint8_t>(word.front());
    const size_t size = options_.byte_level || byte < 0x80 ? 1 : first_code_point(word).size;
    const std::string_view unit = word.substr(0, size);
    word.remove_prefix(size);
    const int32_t token = size == 1 ? byte_tokens_[byte] : numbers_.find(unit).value_or(-1);
    if (token >= 0) {
      if (unknown_waits) tokens.push_back(unknown_);
      unknown_waits = false;
      tokens.push_back(token);
      continue;
    }
    const std::string spelled = options_.byte_level ? spelled_byte(byte) : std::string(unit);
    const auto fallback_of = [&](char c) { return fallback_tokens_[static_cast<uint8_t>(c)]; };
    if (std::all_of(spelled.begin(), spelled.end(), [&](char c) { return fallback_of(c) >= 0; })) {
      for (const char c : spelled) tokens.push_back(fallback_of(c));
    } else if (unknown_ >= 0) {
      if (unknown_waits && !options_.fuse_unknown) tokens.push_back(unknown_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) tokens.push_back(unknown_);
}

void Bpe::merge_few(std::vector<int32_t>& tokens) const {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Pair {
    uint32_t rank;
    int32_t token;
  };
  std::array<Pair, kFewTokens> pairs;  // of each token with the next
  const auto pair_at = [&](size_t i) {
    const Merge* merge = find_merge(tokens[i], tokens[i + 1]);
    return merge == nullptr ? Pair{kNone, 0} : Pair{merge->rank, merge->token};
  };
  size_t count = tokens.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = pair_at(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNone) break;
    tokens[best] = pairs[best].token;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      tokens[i] = tokens[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
    if (best + 1 < count) pairs[best] = pair_at(best);
  }
  tokens.resize(count);
}

void Bpe::merge_many(std::vector<int32_t>& tokens, Space& space) const {
  auto& symbols = space.symbols;
  auto& candidates = space.candidates;
  const auto later = [](const Space::Candidate& a, const Space::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto count = static_cast<int32_t>(tokens.size());
  symbols.clear();
  candidates.clear();
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back({.token = tokens[static_cast<size_t>(i)], .previous = i - 1, .next = i + 1 < count ? i + 1 : -1});
  const auto symbol = [&](int32_t i) -> Space::Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto propose = [&](int32_t position) {
    const Merge* merge = find_merge(symbol(position).token, symbol(symbol(position).next).token);
    if (merge != nullptr) candidates.push_back({merge->rank, position, merge->token});
    return merge != nullptr;
  };
  for (int32_t i = 0; i + 1 < count; ++i) propose(i);
  std::make_heap(candidates.begin(), candidates.end(), later);
  const auto push = [&](int32_t position) {
    if (propose(position)) std::push_heap(candidates.begin(), candidates.end(), later);
  };
  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), later);
    const Space::Candidate best = candidates.back();
    candidates.pop_back();
    Space::Symbol& left = symbol(best.position);
    if (left.merged || left.next < 0) continue;
    Space::Symbol& right = symbol(left.next);
    const Merge* merge = find_merge(left.token, right.token);
    if (merge == nullptr || merge->token != best.token) continue;  // the pair has changed since
    left.token = best.token;
    left.next = right.next;
    right.merged = true;
    if (left.next >= 0) symbol(left.next).previous = best.position;
    if (left.previous >= 0) push(left.previous);
    if (left.next >= 0) push(best.position);
  }
  tokens.clear();
  for (const Space::Symbol& kept : symbols) {
    if (!kept.merged) tokens.push_back(kept.token);
  }
}

}  // namespace ovq::text
