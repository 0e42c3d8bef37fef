#include "ovq/text/json_tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "ovq/base/error.h"
#include "ovq/text/text_stream.h"
#include "ovq/text/utf8.h"
#include "tests/tasks/fixtures.h"
#include "tests/text/small_tokenizers.h"

namespace ovq::text {
namespace {

using nlohmann::json;
using ovq::test::small_tokenizer;
using tasks::test::error_of;

std::unique_ptr<JsonTokenizer> made(const json& file, const std::string& config = "") {
  return make_json_tokenizer({.tokenizer = file.dump(), .config = config}, "tokenizer.json");
}

std::string streamed_text(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  TextStream stream(tokenizer, Place::start);
  std::string text;
  for (const int32_t token : tokens) {
    text += stream.add(token);
    EXPECT_EQ(valid_prefix(text), text.size());
  }
  return text + stream.finish();
}

// What the library `tokenizers` returned for the same strings.
TEST(JsonTokenizer, TokensAndTextAreThoseOfTheLibrary) {
  std::unique_ptr<JsonTokenizer> tokenizer;
  std::string variant;
  int64_t variants = 0, texts = 0;
  for (const json& line : ovq::test::lines_of("golden.jsonl")) {
    const auto decoded = line.value("decoded", "");
    if (line.contains("variant")) {
      variant = line["variant"].get<std::string>();
      tokenizer = made(small_tokenizer(variant));
      EXPECT_EQ(json(tokenizer->added_before()), line["before"]) << variant;
      EXPECT_EQ(json(tokenizer->added_after()), line["after"]) << variant;
      ++variants;
    } else if (line.contains("tokens")) {
      EXPECT_EQ(tokenizer->decode(line["tokens"].get<std::vector<int32_t>>()), decoded) << variant;
    } else {
      const std::vector<int32_t> tokens = tokenizer->encode(line["text"].get<std::string>());
      EXPECT_EQ(json(tokens), line["ids"]) << variant << " " << line["text"];
      EXPECT_EQ(tokenizer->decode(tokens), decoded) << variant << " " << line["text"];
      // The decoder Metaspace drops every mark of the first token, a stream one space.
      const std::string shown = streamed_text(*tokenizer, tokens);
      EXPECT_TRUE(shown == decoded || variant.starts_with("metaspace")) << variant << " " << shown;
      EXPECT_EQ(tokenizer->encode(line["text"].get<std::string>()), tokens) << "from the cache";
      ++texts;
    }
  }
  EXPECT_GE(variants, 30);
  EXPECT_GE(texts, 20 * variants);
}

TEST(JsonTokenizer, MergesMayBeStringsOrPairs) {
  for (const char* name : {"gpt2", "unknown-fused"}) {
    json file = small_tokenizer(name);
    const std::vector<int32_t> expected = made(file)->encode("the whale swam");
    for (json& merge : file["model"]["merges"]) {
      if (merge.is_array()) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      } else {
        const auto text = merge.get<std::string>();
        merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
      }
    }
    EXPECT_EQ(made(file)->encode("the whale swam"), expected);
  }
  json file = small_tokenizer("unknown-fused");
  const std::vector<int32_t> expected = made(file)->encode("the whale swam");
  file["model"]["merges"].insert(file["model"]["merges"].begin(), "#version: 0.2");
  EXPECT_EQ(made(file)->encode("the whale swam"), expected);
}

TEST(JsonTokenizer, OnlyTheStartOfATextGetsASpace) {
  for (const char* name : {"llama2", "mistral", "metaspace", "gpt2-space"}) {
    const auto tokenizer = made(small_tokenizer(name));
    std::vector<int32_t> tokens = tokenizer->encode("The wh");
    for (const int32_t token : tokenizer->encode("ale", Place::middle)) tokens.push_back(token);
    const bool strips = std::string(name) != "gpt2-space";
    EXPECT_EQ(tokenizer->decode(tokens), strips ? "The whale" : " The whale") << name;
    EXPECT_EQ(tokenizer->adds_first_space(), strips) << name;
    EXPECT_EQ(streamed_text(*tokenizer, tokens), tokenizer->decode(tokens)) << name;
  }
}

TEST(JsonTokenizer, CharactersOfSeveralTokensAreHeldBack) {
  for (const char* name : {"gpt2", "llama2"}) {
    const auto tokenizer = made(small_tokenizer(name));
    TextStream stream(*tokenizer, Place::middle);
    const std::vector<int32_t> tokens = tokenizer->encode("\xf0\x9f\xa6\x91", Place::middle);  // not in the vocabulary
    ASSERT_GE(tokens.size(), 3u);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) EXPECT_EQ(stream.add(tokens[i]), "");
    EXPECT_EQ(stream.add(tokens.back()), "\xf0\x9f\xa6\x91");
  }
}

TEST(JsonTokenizer, NamesAndBytesOfTokens) {
  const auto tokenizer = made(small_tokenizer("gpt2"));
  const int32_t end = tokenizer->token_named("<|end|>").value();
  EXPECT_EQ(tokenizer->token_bytes(end), "");
  EXPECT_EQ(tokenizer->token_name(end), "<|end|>");
  const int32_t space = tokenizer->token_named("\xc4\xa0").value();
  EXPECT_EQ(tokenizer->token_bytes(space), " ");
  const int32_t line = tokenizer->token_named("\xc4\x8a").value();
  EXPECT_EQ(tokenizer->token_name(line), "\\n");
  const int32_t continuation = tokenizer->token_named("\xc4\xa2").value();
  EXPECT_EQ(tokenizer->token_bytes(continuation), "\x80");
  EXPECT_EQ(tokenizer->token_name(continuation), "\\x80");
  EXPECT_EQ(tokenizer->token_named("<|none|>"), std::nullopt);
  const auto think = tokenizer->token_named("<think>");  // shown, since it is not special
  EXPECT_EQ(tokenizer->token_bytes(think.value()), "<think>");
  EXPECT_EQ(tokenizer->vocab(), *think + 1);
}

TEST(JsonTokenizer, TheConfigurationNamesTheTokensAroundADocument) {
  const json file = small_tokenizer("llama3");
  const auto plain = made(file);
  const int32_t start = plain->token_named("<|start|>").value(), end = plain->token_named("<|end|>").value();
  EXPECT_EQ(plain->begin_token(), start);  // of the post_processor
  EXPECT_EQ(plain->end_token(), std::nullopt);

  const auto configured = made(file, R"({"eos_token": {"content": "<|end|>"}, "pad_token": "<|end|>", "other": [1]})");
  EXPECT_EQ(configured->begin_token(), start);
  EXPECT_EQ(configured->end_token(), end);
  EXPECT_EQ(configured->padding_token(), end);
  EXPECT_EQ(configured->encode_document("").size(), 2u);
  EXPECT_NE(configured->identity(), plain->identity());

  EXPECT_EQ(made(file, R"({"bos_token": "<|start|>", "add_bos_token": false})")->begin_token(), std::nullopt);
  EXPECT_EQ(made(small_tokenizer("gpt2"), R"({"bos_token": "<|end|>"})")->begin_token(), std::nullopt);
  EXPECT_EQ(made(small_tokenizer("gpt2"), R"({"bos_token": "<|end|>", "add_bos_token": true})")->begin_token(), end);
  EXPECT_EQ(made(small_tokenizer("yi"))->end_token(), 2);

  const auto error = [&](const std::string& config) { return error_of([&] { made(file, config); }); };
  const std::string start_of = "[tokenizer] tokenizer.json: tokenizer_config.json: ";
  EXPECT_EQ(error(R"({"eos_token": "<|no|>"})"),
            start_of + "eos_token is \"<|no|>\", which tokenizer.json does not have");
  EXPECT_EQ(error(R"({"eos_token": 3})"), start_of + "eos_token is 3; must be a string");
  EXPECT_EQ(error(R"({"add_bos_token": true})"), start_of + "add_bos_token is true, but there is no bos_token");
  EXPECT_EQ(error(R"({"add_prefix_space": true})"),
            start_of + "add_prefix_space is true; the pre_tokenizer of tokenizer.json says otherwise");
  EXPECT_EQ(error(R"({"split_special_tokens": true})"), start_of + "split_special_tokens is true; must be false");
  EXPECT_EQ(error("{"), start_of + "it is not JSON at byte 2");
  EXPECT_EQ(error("[]"), start_of + "it is a list; must be an object");
}

TEST(JsonTokenizer, ChatTemplatesComeWithIt) {
  const json file = small_tokenizer("gpt2");
  EXPECT_EQ(made(file)->chat_template(), "");
  EXPECT_EQ(made(file, R"({"chat_template": "one"})")->chat_template(), "one");
  const std::string several =
      R"({"chat_template": [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]})";
  EXPECT_EQ(made(file, several)->chat_template(), "b");
  EXPECT_EQ(
      make_json_tokenizer({.tokenizer = file.dump(), .config = several, .chat_template = "c"}, "x")->chat_template(),
      "c");
}

TEST(JsonTokenizer, LivesInADirectory) {
  const tasks::test::Folder folder;
  const std::string file = folder.write("from/tokenizer.json", small_tokenizer("llama3").dump());
  folder.write("from/tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "text"})");
  folder.write("from/chat_template.jinja", "other text");
  folder.write("to/tokenizer.bytes", "tokens are bytes\n");
  const auto tokenizer = make_tokenizer(file);
  EXPECT_EQ(make_tokenizer(folder.path("from"))->identity(), tokenizer->identity());
  save_tokenizer(*tokenizer, folder.path("to"));
  const auto loaded = load_tokenizer(folder.path("to"));
  EXPECT_EQ(loaded->identity(), tokenizer->identity());
  EXPECT_EQ(loaded->chat_template(), "other text");
  EXPECT_EQ(loaded->end_token(), tokenizer->end_token());
  EXPECT_FALSE(std::filesystem::exists(folder.path("to/tokenizer.bytes")));

  save_tokenizer(*make_byte_tokenizer(), folder.path("to"));
  EXPECT_EQ(load_tokenizer(folder.path("to"))->identity(), "bytes");
  EXPECT_FALSE(std::filesystem::exists(folder.path("to/tokenizer_config.json")));
  remove_tokenizer(folder.path("to"));
  EXPECT_EQ(load_tokenizer(folder.path("to")), nullptr);
  EXPECT_EQ(error_of([&] { make_tokenizer(folder.path("to")); }),
            "[tokenizer] " + folder.path("to") + " has no tokenizer.json, tokenizer.model or tokenizer.bytes");
  const std::string broken = folder.write("to/tokenizer.json", "{");
  EXPECT_EQ(error_of([&] { make_tokenizer(folder.path("to")); }),
            "[tokenizer] " + broken + ": it is not JSON at byte 2");
}

TEST(JsonTokenizer, SeveralThreadsGetTheSameTokens) {
  const auto tokenizer = made(small_tokenizer("llama3"));
  std::vector<std::string> texts;
  for (const json& line : ovq::test::lines_of("golden.jsonl")) {
    if (line.contains("text") && texts.size() < 200) texts.push_back(line["text"].get<std::string>());
  }
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer->encode(text));
  std::vector<int64_t> wrong(4);
  std::vector<std::thread> threads;
  for (int64_t& count : wrong) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) count += tokenizer->encode(texts[i]) != expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int64_t>(4));
}

TEST(JsonTokenizer, TextMustBeUtf8) {
  const auto tokenizer = made(small_tokenizer("gpt2"));
  EXPECT_EQ(error_of([&] { tokenizer->encode("ab\xff"); }),
            "[tokenizer] the text is not UTF-8 at byte 2; this tokenizer needs it");
  EXPECT_EQ(error_of([&] { tokenizer->decode({-1}); }),
            "[tokenizer] token is -1; the tokenizer has " + std::to_string(tokenizer->vocab()));
  EXPECT_TRUE(tokenizer->encode("").empty());
}

// What is changed in the file, and the error.
class Refusals : public testing::Test {
 protected:
  std::string refusal(const std::string& pointer, const json& value, const std::string& variant = "llama3") {
    json file = small_tokenizer(variant);
    file[json::json_pointer(pointer)] = value;
    return of(file.dump());
  }
  std::string of(const std::string& content) {
    const std::string error = error_of([&] { make_json_tokenizer({.tokenizer = content}, "t.json"); });
    EXPECT_TRUE(error.starts_with("[tokenizer] t.json: ")) << error.substr(0, 200);
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LT(error.size(), 400u);
    return error.substr(std::min<size_t>(error.size(), 20));
  }
};

TEST_F(Refusals, UnknownParts) {
  EXPECT_EQ(refusal("/version", "2.0"), "version is \"2.0\"; must be \"1.0\"");
  EXPECT_EQ(refusal("/truncation", json::object()),
            "truncation is an object; must be null: texts are encoded as they are");
  EXPECT_EQ(refusal("/decode", 1), "unknown field \"decode\"; did you mean \"decoder\"?");
  EXPECT_EQ(refusal("/model/type", "Unigram"), "model.type is \"Unigram\"; must be BPE");
  EXPECT_EQ(refusal("/model/dropout", 0.1), "model.dropout is 0.1; must be null: tokens are the same every time");
  EXPECT_EQ(refusal("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix is \"</w>\"; must be empty");
  EXPECT_EQ(refusal("/model/bytes_fallback", true),
            "unknown field of model \"bytes_fallback\"; did you mean \"byte_fallback\"?");
  EXPECT_EQ(
      refusal("/normalizer", {{"type", "Precompiled"}}),
      "normalizer.type is \"Precompiled\"; must be NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace or Sequence");
  EXPECT_EQ(refusal("/pre_tokenizer/pretokenizers/0", {{"type", "Whitespace"}}),
            "pre_tokenizer.pretokenizers[0].type is \"Whitespace\"; must be ByteLevel, Split, Digits, Metaspace or "
            "Sequence");
  EXPECT_EQ(refusal("/pre_tokenizer/pretokenizers/0", small_tokenizer("gpt2")["pre_tokenizer"]),
            "pre_tokenizer.pretokenizers[1] follows ByteLevel, which must be the last");
  EXPECT_EQ(refusal("/pre_tokenizer/pretokenizers/0/behavior", "Merged"),
            "pre_tokenizer.pretokenizers[0].behavior is \"Merged\"; must be Isolated, Removed, MergedWithPrevious, "
            "MergedWithNext or Contiguous");
  EXPECT_EQ(
      refusal("/pre_tokenizer/pretokenizers/0/limit", 3),
      "unknown field of pre_tokenizer.pretokenizers[0] \"limit\"; expected one of type, pattern, behavior, invert");
  EXPECT_EQ(refusal("/post_processor/processors/1/type", "RobertaProcessing"),
            "post_processor.processors[1].type is \"RobertaProcessing\"; must be TemplateProcessing, ByteLevel or "
            "Sequence");
  EXPECT_EQ(
      refusal("/decoder", {{"type", "WordPiece"}}),
      "decoder.type is \"WordPiece\"; must be ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  EXPECT_EQ(refusal("/decoder", nullptr), "decoder is missing; must be an object");
  EXPECT_EQ(refusal("/decoder/decoders/3/start", 2, "llama2"),
            "decoder.decoders[3].start is 2; must be an integer within 0 and 1");
  EXPECT_EQ(refusal("/decoder/decoders/3", {{"type", "ByteFallback"}}, "llama2"),
            "decoder.decoders[3]: ByteFallback follows what joins the tokens to one text");
}

TEST_F(Refusals, WrongTypes) {
  EXPECT_EQ(of("[]"), "it is a list; must be an object");
  EXPECT_EQ(of("7"), "it is 7; must be an object");
  EXPECT_EQ(of(""), "it is not JSON at byte 1");
  EXPECT_EQ(of("{\"version\": \"1.0\""), "it is not JSON at byte 18");
  EXPECT_EQ(of("{\"a\": 1, \"a\": 2}"), "the field \"a\" is there twice");
  EXPECT_EQ(of("{\"model\": {\"vocab\": {}, \"vocab\": {}}}"), "the field \"vocab\" is there twice");
  EXPECT_EQ(of("{\"x\": \"\xff\"}"), "it is not JSON at byte 8");
  EXPECT_EQ(refusal("/model", 1), "model is 1; must be an object");
  EXPECT_EQ(refusal("/model/vocab", 1), "model.vocab is 1; must be an object");
  EXPECT_EQ(refusal("/model/merges", "a b"), "model.merges is \"a b\"; must be a list");
  EXPECT_EQ(of("{\"model\": {}, \"decoder\": {}}"), "model must have vocab and merges");
  EXPECT_EQ(refusal("/model/vocab/x", "1"), "model.vocab: \"x\" is \"1\"; must be an integer");
  EXPECT_EQ(refusal("/model/vocab/x", json::array()), "model.vocab: \"x\" is a list or object; must be an integer");
  EXPECT_EQ(refusal("/model/vocab/x", 1.5), "model.vocab: \"x\" is 1.5; must be an integer");
  EXPECT_EQ(refusal("/model/merges/0", 1), "model.merges[0] is 1; must be two tokens");
  EXPECT_EQ(refusal("/model/merges/2", {{"a"}}), "model.merges[2] is no list of two strings; must be two tokens");
  EXPECT_EQ(refusal("/model/merges/1", {"a", "b", "c"}), "model.merges[1] is more than two tokens; must be two tokens");
  EXPECT_EQ(refusal("/model/merges/1", {"a"}), "model.merges[1] is fewer than two tokens; must be two tokens");
  EXPECT_EQ(refusal("/model/merges/1", "a b c"), "model.merges[1] is \"a b c\"; must be two tokens");
  EXPECT_EQ(refusal("/model/ignore_merges", 1), "model.ignore_merges is 1; must be true or false");
  EXPECT_EQ(refusal("/added_tokens", 1), "added_tokens is 1; must be a list");
  EXPECT_EQ(refusal("/added_tokens/0/special", "yes"), "added_tokens[0].special is \"yes\"; must be true or false");
  EXPECT_EQ(refusal("/pre_tokenizer", "x"), "pre_tokenizer is \"x\"; must be an object");
  EXPECT_EQ(refusal("/pre_tokenizer/pretokenizers/0/pattern", {{"Glob", "x"}}),
            "pre_tokenizer.pretokenizers[0].pattern.String is missing; must be a string");
}

TEST_F(Refusals, NumbersAndNames) {
  EXPECT_EQ(refusal("/model/vocab/x", 1 << 22), "model.vocab: \"x\" is 4194304; must be within 0 and 4194303");
  EXPECT_EQ(refusal("/model/vocab/x", uint64_t{1} << 63),
            "model.vocab: \"x\" is 9223372036854775807; must be within 0 and 4194303");
  EXPECT_EQ(refusal("/model/vocab/x", -1), "model.vocab: \"x\" is -1; must be within 0 and 4194303");
  EXPECT_EQ(refusal("/model/vocab/zz", 5), "model.vocab: \"%\" and \"zz\" both are 5");
  EXPECT_EQ(refusal("/model/vocab", json::object()), "model.vocab has no tokens");
  EXPECT_EQ(refusal("/model/merges/0", {"q", "a"}),
            "model.merges[0] needs the token \"qa\", which is not in model.vocab");
  EXPECT_EQ(refusal("/model/merges/0", {"", "a"}), "model.merges[0] has an empty token");
  EXPECT_EQ(refusal("/model/unk_token", "<none>"), "model.unk_token is \"<none>\", which is not in model.vocab");
  EXPECT_EQ(refusal("/added_tokens/1/id", 7),
            "added_tokens[1].id is 7, but \"<|start|>\" is 420, the first number that is free");
  EXPECT_EQ(refusal("/added_tokens/0/id", 7), "added_tokens[0].id is 7, but \"<|end|>\" is 0 in model.vocab");
  EXPECT_EQ(refusal("/added_tokens/2/content", "<|start|>"),
            "added_tokens[2].content is \"<|start|>\"; must be a token that is not in the list before");
  EXPECT_EQ(refusal("/added_tokens/1/content", ""),
            "added_tokens: token 420 is looked for as 0 bytes; must have 1 to 512");
  EXPECT_EQ(refusal("/post_processor/processors/1/special_tokens/<|start|>/ids/0", 5000),
            "post_processor.processors[1].special_tokens[\"<|start|>\"].ids is 5000; must be within 0 and 421");
  EXPECT_EQ(refusal("/post_processor/processors/1/single/0/SpecialToken/id", "x"),
            "post_processor.processors[1].single[0].SpecialToken.id is \"x\"; must be one of the special_tokens");
  json file = small_tokenizer("llama3");
  file["post_processor"]["processors"][1]["single"].erase(1);
  EXPECT_EQ(of(file.dump()), "post_processor.processors[1].single does not have the text");
  file = small_tokenizer("llama3");
  json& single = file["post_processor"]["processors"][1]["single"];
  single.insert(single.begin(), json(single[0]));
  EXPECT_EQ(of(file.dump()), "post_processor adds 2 tokens before a text; must be at most one");
}

TEST_F(Refusals, LongAndStrangeTextIsShortenedInErrors) {
  EXPECT_EQ(refusal("/model/type", std::string(100000, 'x')),
            "model.type is \"" + std::string(60, 'x') + "\"...; must be BPE");
  EXPECT_EQ(refusal("/model/type", "a\n\xc3\xa9"), "model.type is \"a\\n\xc3\xa9\"; must be BPE");
  EXPECT_EQ(refusal("/" + std::string(100000, 'x'), 1).substr(0, 30), "unknown field \"xxxxxxxxxxxxxxx");
  EXPECT_EQ(refusal("/a\nb", 1), "unknown field \"a\\nb\"");
}

// Of CPU time, which other programs on the machine do not change much.
double seconds_of(const std::function<void()>& call) {
  const std::clock_t start = std::clock();
  call();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST_F(Refusals, HostileSizesEndSoon) {
  const size_t size = 20'000'000;
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(of(std::string(size, '[')), "its values are nested deeper than 64"); }), 5);
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_EQ(of(objects), "its values are nested deeper than 64");
  std::string many = "{\"added_tokens\": [1";
  for (size_t i = 0; i < size / 4; ++i) many += ",1";
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(of(many + "]}"), "it has more than 2000000 values"); }), 5);
  EXPECT_LT(seconds_of([&] { EXPECT_LT(of("\"" + std::string(size, 'x') + "\"").size(), 100u); }), 5);
}

// Texts that would take quadratic time if words, runs of white space or marks were handled carelessly.
TEST(JsonTokenizer, LongRunsTakeLinearTime) {
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\xcc\x81" : "\xcc\xa3";  // of classes 230 and 220
  const std::string texts[] = {std::string(1000000, 'a'), std::string(1000000, ' '), std::string(1000000, '\n'),
                               std::string(1000000, '!'), std::string(1000000, '1'), marks};
  for (const char* name : {"llama3", "qwen2", "gpt2", "llama2", "o200k", "smollm2", "metaspace"}) {
    const auto tokenizer = made(small_tokenizer(name));
    for (const std::string& text : texts) {
      std::vector<int32_t> tokens;
      EXPECT_LT(seconds_of([&] { tokens = tokenizer->encode(text); }), 10) << name << " " << text.substr(0, 3);
      const std::string back = tokenizer->decode(tokens);
      EXPECT_TRUE(back == text || std::string(name) == "qwen2" || std::string(name) == "metaspace") << name;
    }
  }
}

}  // namespace
}  // namespace ovq::text
