#include "ovq/text/pre_tokenizer.h"

#include <array>

#include "ovq/text/unicode.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct BehaviorName {
  const char* name;
  SplitBehavior behavior;
};
constexpr auto kBehaviors = std::to_array<BehaviorName>({{"Isolated", SplitBehavior::isolated},
                                                         {"Removed", SplitBehavior::removed},
                                                         {"MergedWithPrevious", SplitBehavior::merged_with_previous},
                                                         {"MergedWithNext", SplitBehavior::merged_with_next},
                                                         {"Contiguous", SplitBehavior::contiguous}});

SplitBehavior behavior_of(FormatObject& object) {
  const std::string came = object.text("behavior");
  for (const auto& [name, behavior] : kBehaviors) {
    if (came == name) return behavior;
  }
  object.refuse("behavior", came, "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Joins matches and the text between them into pieces. Parts come in order and cover the text; two matches may follow
// each other directly, and a match may be empty.
class PieceJoiner {
 public:
  explicit PieceJoiner(SplitBehavior behavior) : behavior_(behavior) {}

  template <class Emit>
  void add(Regex::Match part, bool matched, const Emit& emit) {
    const bool joins = held_ && (behavior_ == SplitBehavior::contiguous             ? matched == held_matched_
                                 : behavior_ == SplitBehavior::merged_with_previous ? matched && !held_matched_
                                 : behavior_ == SplitBehavior::merged_with_next     ? !matched && held_matched_
                                                                                    : false);
    if (joins) {
      held_->end = part.end;
    } else {
      finish(emit);
      held_ = part;
    }
    held_matched_ = matched;
  }
  template <class Emit>
  void finish(const Emit& emit) {
    if (held_ && !(behavior_ == SplitBehavior::removed && held_matched_)) emit(*held_);
    held_.reset();
  }

 private:
  SplitBehavior behavior_;
  std::optional<Regex::Match> held_;
  bool held_matched_ = false;
};

nlohmann::json byte_level_pattern() { return {{"Regex", kByteLevelPattern}}; }

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& value, const std::string& path) { add(value, path); }

void PreTokenizer::add(const nlohmann::json& value, const std::string& path) {
  if (byte_level_) refuse_format(path, " follows ByteLevel, which must be the last");
  FormatObject object(value, path);
  const std::string type = object.text("type");
  if (type == "Sequence") {
    const nlohmann::json& list = object.array("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) add(list[i], path + ".pretokenizers[" + std::to_string(i) + "]");
  } else if (type == "ByteLevel") {
    object.ignore({"trim_offsets"});
    Step step{.kind = Kind::byte_level, .always_adds = object.flag("add_prefix_space")};
    if (object.flag("use_regex", true)) step.pattern.emplace(byte_level_pattern(), path);
    steps_.push_back(std::move(step));
    byte_level_ = true;
  } else if (type == "Split") {
    const nlohmann::json& pattern = object.at("pattern", "an object");
    steps_.push_back({.kind = Kind::split,
                      .pattern = Pattern(pattern, object.path_of("pattern")),
                      .behavior = behavior_of(object),
                      .inverted = object.flag("invert")});
  } else if (type == "Digits") {
    steps_.push_back(
        {.kind = Kind::digits,
         .behavior = object.flag("individual_digits") ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "Metaspace") {
    object.ignore({"str_rep"});
    const bool older = object.flag("add_prefix_space", true);  // what there was before prepend_scheme
    const std::string scheme = object.text("prepend_scheme", older ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      object.refuse("prepend_scheme", scheme, "always, first or never");
    if (!older && scheme != "never") object.refuse("add_prefix_space", false, "true where prepend_scheme is not never");
    Step step{.kind = Kind::metaspace,
              .behavior = SplitBehavior::merged_with_next,
              .always_adds = scheme == "always",
              .first_adds = scheme == "first",
              .splits = object.flag("split", true),
              .space = object.text("replacement")};
    if (step.space.empty() || first_code_point(step.space).size != step.space.size())
      object.refuse("replacement", step.space, "one character");
    if (step.splits) step.pattern.emplace(nlohmann::json{{"String", step.space}}, path);
    steps_.push_back(std::move(step));
  } else {
    refuse_format(object.path_of("type"), " is ", in_quotes(type),
                  "; must be ByteLevel, Split, Digits, Metaspace or Sequence");
  }
  object.finish();
}

std::optional<bool> PreTokenizer::byte_level_adds_space() const {
  return byte_level_ ? std::optional<bool>(steps_.back().always_adds) : std::nullopt;
}

template <class Matches>
void PreTokenizer::run_split(size_t step, std::string_view text, PiecePlace place, const Word& word,
                             const Matches& matches) const {
  const auto emit = [&](Regex::Match piece) {
    if (piece.begin == piece.end) return;
    run(step + 1, text.substr(piece.begin, piece.end - piece.begin),
        {.first = place.first && piece.begin == 0, .prepends = place.prepends || piece.begin > 0}, word);
  };
  const Step& settings = steps_[step];
  size_t done = 0;
  if (settings.behavior == SplitBehavior::isolated) {  // nearly every pattern that is published
    matches([&](Regex::Match match) {
      emit({done, match.begin});
      emit(match);
      done = match.end;
    });
    emit({done, text.size()});
    return;
  }
  PieceJoiner joiner(settings.behavior);
  matches([&](Regex::Match match) {
    if (done < match.begin) joiner.add({done, match.begin}, settings.inverted, emit);
    joiner.add(match, !settings.inverted, emit);
    done = match.end;
  });
  if (done < text.size()) joiner.add({done, text.size()}, settings.inverted, emit);
  joiner.finish(emit);
}

void PreTokenizer::run(size_t step, std::string_view text, PiecePlace place, const Word& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) {
    word(text);
    return;
  }
  const Step& settings = steps_[step];
  const auto matches_of = [&](std::string_view in) {
    return [&settings, in](const auto& each) { settings.pattern->for_each(in, each); };
  };
  std::string changed;
  switch (settings.kind) {
    case Kind::split:
      run_split(step, text, place, word, matches_of(text));
      break;
    case Kind::digits:
      run_split(step, text, place, word, [text](const auto& each) {
        for (size_t at = 0; at < text.size();) {
          const CodePoint next = first_code_point(text.substr(at));
          const bool digit = next.value < 0x80 ? next.value >= '0' && next.value <= '9' : is_number(next.value);
          if (digit) each(Regex::Match{at, at + next.size});
          at += next.size;
        }
      });
      break;
    case Kind::byte_level:
      if (settings.always_adds && place.prepends && !text.starts_with(' ')) {
        changed.reserve(text.size() + 1);
        changed.append(" ").append(text);
        text = changed;
      }
      if (settings.pattern) {
        run_split(step, text, place, word, matches_of(text));
      } else {
        word(text);
      }
      break;
    case Kind::metaspace: {
      std::string marked;
      for (const char c : text) {
        if (c == ' ') {
          marked += settings.space;
        } else {
          marked += c;
        }
      }
      const bool adds = place.prepends && (settings.always_adds || (settings.first_adds && place.first));
      if (adds && !marked.starts_with(settings.space)) marked.insert(0, settings.space);
      if (settings.splits) {
        run_split(step, marked, place, word, matches_of(marked));
      } else {
        run(step + 1, marked, place, word);
      }
      break;
    }
  }
}

}  // namespace ovq::text
