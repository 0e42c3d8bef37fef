// Compares a tokenizer with the results of another program, or measures its speed; used by scripts/check-tokenizers.sh.
//   tokenizer_check compare TOKENIZER CASES
//   tokenizer_check speed TOKENIZER FILE...
// CASES has a JSON object in each line: {"text", "ids", "decoded", "assigned", "unassigned"}, the last two being the
// characters that the other program's Unicode has and has not; {"tokens", "decoded"} for any tokens; {"before",
// "after"}, the tokens that are put around a text. Texts with a character that only one of the two knows are left out.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/text/chat_template.h"
#include "ovq/text/documents.h"
#include "ovq/text/json_tokenizer.h"
#include "ovq/text/regex.h"
#include "ovq/text/text_stream.h"

namespace {

using nlohmann::json;
using namespace ovq::text;

// Whether PCRE2's Unicode has all of one list of characters and none of the other.
bool has_same_unicode(const json& line) {
  static const Regex unassigned(R"(\p{Cn})"), assigned(R"(\P{Cn})");
  return !unassigned.find(line["assigned"].get<std::string>(), 0) &&
         !assigned.find(line["unassigned"].get<std::string>(), 0);
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  TextStream stream(tokenizer, Place::start);
  std::string text;
  for (const int32_t token : tokens) text += stream.add(token);
  return text + stream.finish();
}

struct Counts {
  int64_t texts = 0, left_out = 0, wrong_ids = 0, wrong_text = 0, wrong_stream = 0, id_lists = 0, wrong_lists = 0;
  int64_t chats = 0, wrong_chats = 0;
};

void show(const char* what, const json& line, const json& came, int64_t number) {
  constexpr int64_t kShown = 5;
  if (number > kShown) return;
  std::printf("  %s: %s\n    came     %s\n", what, line.dump().c_str(),
              came.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
}

// The format of the tokenizer's chat template; none if it is not known.
std::optional<ChatTemplate> known_chat(const Tokenizer& tokenizer) {
  try {
    return ChatTemplate::of(tokenizer.chat_template());
  } catch (const ovq::DataError&) {
    return std::nullopt;
  }
}

// null where the format does not have such a conversation.
json chat_text(const ChatTemplate& chat, const json& line) {
  std::vector<ChatMessage> messages;
  for (const json& message : line["chat"])
    messages.push_back({message[0].get<std::string>(), message[1].get<std::string>()});
  try {
    return chat.text(messages);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
}

int compare(const std::string& path, const std::string& cases) {
  const auto tokenizer = make_tokenizer(path);
  const auto& added = dynamic_cast<const JsonTokenizer&>(*tokenizer);
  const auto chat = known_chat(*tokenizer);
  Counts counts;
  std::ifstream in(cases);
  bool around = false;
  for (std::string text; std::getline(in, text);) {
    const json line = json::parse(text);
    if (line.contains("before")) {
      around = true;
      if (line["before"].get<std::vector<int32_t>>() != added.added_before() ||
          line["after"].get<std::vector<int32_t>>() != added.added_after()) {
        std::printf("  around a text: %s\n", line.dump().c_str());
        ++counts.wrong_ids;
      }
    } else if (line.contains("chat")) {
      if (!chat) continue;
      ++counts.chats;
      if (const json came = chat_text(*chat, line); came != line["text"])
        show("chat", line, came, ++counts.wrong_chats);
    } else if (line.contains("tokens")) {
      ++counts.id_lists;
      const std::string decoded = tokenizer->decode(line["tokens"].get<std::vector<int32_t>>());
      if (decoded != line["decoded"].get<std::string>()) show("tokens", line, decoded, ++counts.wrong_lists);
    } else {
      const auto input = line["text"].get<std::string>();
      if (!has_same_unicode(line)) {
        ++counts.left_out;
        continue;
      }
      ++counts.texts;
      const std::vector<int32_t> ids = tokenizer->encode(input);
      if (ids != line["ids"].get<std::vector<int32_t>>()) {
        show("text", line, ids, ++counts.wrong_ids);
        continue;
      }
      const std::string decoded = tokenizer->decode(ids);
      if (decoded != line["decoded"].get<std::string>()) show("decoded", line, decoded, ++counts.wrong_text);
      if (const std::string shown = streamed(*tokenizer, ids); shown != decoded)
        show("streamed", line, shown, ++counts.wrong_stream);
    }
  }
  std::printf(
      "%lld texts, %lld with other tokens, %lld decoded differently, %lld streamed differently, %lld left out; %lld "
      "lists "
      "of tokens, %lld decoded differently; chat template %s: %lld conversations, %lld different\n",
      static_cast<long long>(counts.texts), static_cast<long long>(counts.wrong_ids),
      static_cast<long long>(counts.wrong_text), static_cast<long long>(counts.wrong_stream),
      static_cast<long long>(counts.left_out), static_cast<long long>(counts.id_lists),
      static_cast<long long>(counts.wrong_lists), chat ? chat->name().c_str() : "unknown",
      static_cast<long long>(counts.chats), static_cast<long long>(counts.wrong_chats));
  const bool good =
      counts.wrong_ids + counts.wrong_text + counts.wrong_stream + counts.wrong_lists + counts.wrong_chats == 0 &&
      counts.texts > 0 && around;
  return good ? 0 : 1;
}

// Of this program's work, on one core: other programs on the machine do not count.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int speed(const std::string& path, const std::vector<std::string>& files) {
  const double loading = cpu_seconds();
  const auto tokenizer = make_tokenizer(path);
  const double load_seconds = cpu_seconds() - loading;
  std::vector<std::string> texts;
  for (const std::string& file : files) texts.push_back(read_text_file("tokenizer_check", file));
  size_t bytes = 0, tokens = 0;
  const double start = cpu_seconds();
  std::vector<std::vector<int32_t>> encoded;
  for (const std::string& text : texts) {
    encoded.push_back(tokenizer->encode(text));
    bytes += text.size();
    tokens += encoded.back().size();
  }
  const double seconds = cpu_seconds() - start;
  const double back = cpu_seconds();
  size_t decoded = 0;
  for (const auto& one : encoded) decoded += tokenizer->decode(one).size();
  const double decode_seconds = cpu_seconds() - back;
  std::printf("loads in %.2f s, encodes %.1f MB/s (%zu bytes, %zu tokens), decodes %.1f MB/s\n", load_seconds,
              static_cast<double>(bytes) / seconds / 1e6, bytes, tokens,
              static_cast<double>(decoded) / decode_seconds / 1e6);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 3 && arguments[0] == "compare") return compare(arguments[1], arguments[2]);
    if (arguments.size() >= 3 && arguments[0] == "speed")
      return speed(arguments[1], {arguments.begin() + 2, arguments.end()});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_check: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: tokenizer_check compare TOKENIZER CASES | speed TOKENIZER FILE...\n");
  return 2;
}
