#include "ovq/tasks/endings.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ovq/base/error.h"
#include "ovq/base/random.h"
#include "ovq/text/documents.h"

namespace ovq::tasks {
namespace {

constexpr const char* kEndings = "endings";

struct Words {
  std::string text;
  std::vector<std::string_view> all;  // of `text`
  std::vector<size_t> places;         // start of each sentence that has enough words before and after it

  std::string joined(size_t first, size_t count) const {
    std::string words;
    for (size_t i = first; i < first + count; ++i) words.append(i == first ? "" : " ").append(all[i]);
    return words;
  }
};

// Quotation marks and brackets may follow the full stop.
bool ends_sentence(std::string_view word) {
  constexpr std::string_view kMarks[] = {"\"", "'", ")", "_", "\xe2\x80\x99", "\xe2\x80\x9d"};
  const std::string_view* mark = nullptr;
  do {
    mark = std::find_if(std::begin(kMarks), std::end(kMarks), [&](auto one) { return word.ends_with(one); });
    if (mark != std::end(kMarks)) word.remove_suffix(mark->size());
  } while (mark != std::end(kMarks));
  return word.ends_with('.') || word.ends_with('?') || word.ends_with('!');
}

void find_words(Words& words, const EndingOptions& options) {
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  const std::string_view text = words.text;
  for (size_t first = text.find_first_not_of(kSpaces); first != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, first), text.size());
    words.all.push_back(text.substr(first, end - first));
    first = text.find_first_not_of(kSpaces, end);
  }
  const auto before = static_cast<size_t>(options.context_words), behind = static_cast<size_t>(options.ending_words);
  for (size_t place = before; place + behind <= words.all.size(); ++place) {
    if (ends_sentence(words.all[place - 1])) words.places.push_back(place);
  }
}

// The position of the right ending first, then positions outside the context for the wrong ones. The endings differ if
// the document has enough different ones.
std::vector<size_t> draw_places(const Words& words, const EndingOptions& options, Random& random) {
  constexpr int kTries = 1000;
  std::vector<size_t> drawn;
  std::vector<std::string> endings;
  for (int tries = 0; std::ssize(drawn) < options.choices; ++tries) {
    const size_t place = words.places[static_cast<size_t>(random.below(std::ssize(words.places)))];
    std::string ending = words.joined(place, static_cast<size_t>(options.ending_words));
    const bool known = tries < kTries && std::find(endings.begin(), endings.end(), ending) != endings.end();
    const bool inside = tries < kTries && !drawn.empty() && place < drawn[0] &&
                        place + static_cast<size_t>(options.context_words) >= drawn[0];
    if (known || inside) continue;
    drawn.push_back(place);
    endings.push_back(std::move(ending));
  }
  return drawn;
}

}  // namespace

std::string make_endings(const std::vector<std::string>& texts, const EndingOptions& options) {
  check(options.questions >= 1 && options.choices >= 2 && options.context_words >= 1 && options.ending_words >= 1,
        kEndings, "questions, context_words and ending_words must be at least 1, choices at least 2");
  std::vector<Words> documents;
  std::vector<size_t> document_of_place;
  for (const std::string& path : text::document_paths(kEndings, texts)) {
    Words words{.text = text::read_utf8_file(kEndings, path)};
    find_words(words, options);
    if (static_cast<int64_t>(words.places.size()) < 2 * options.choices) continue;
    document_of_place.insert(document_of_place.end(), words.places.size(), documents.size());
    documents.push_back(std::move(words));
  }
  check_data(!documents.empty(), kEndings, "no document has ", 2 * options.choices, " sentences after the first ",
             options.context_words, " words");
  std::string lines;
  for (int64_t question = 0; question < options.questions; ++question) {
    Random random(hash_numbers({options.seed, static_cast<uint64_t>(question)}));
    const auto drawn = static_cast<size_t>(random.below(static_cast<int64_t>(document_of_place.size())));
    const Words& words = documents[document_of_place[drawn]];
    const std::vector<size_t> places = draw_places(words, options, random);
    const auto context_words = static_cast<size_t>(options.context_words);
    const auto label = static_cast<size_t>(random.below(options.choices));
    nlohmann::json line = {{"context", words.joined(places[0] - context_words, context_words)},
                           {"endings", nlohmann::json::array()},
                           {"label", label}};
    for (size_t i = 0, wrong = 1; i < places.size(); ++i) {
      const size_t place = i == label ? places[0] : places[wrong++];
      line["endings"].push_back(words.joined(place, static_cast<size_t>(options.ending_words)));
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace ovq::tasks
