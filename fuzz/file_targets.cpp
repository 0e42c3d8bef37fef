// Readers of the libraries without torch: safetensors, states of OVQ-attention, files of tokens, tokenizers of both
// kinds and their text, questions, lines of metrics.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fuzz/targets.h"
#include "ovq/base/checksum.h"
#include "ovq/base/files/safetensors.h"
#include "ovq/base/json_lines.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/tasks/choice.h"
#include "ovq/text/chat_template.h"
#include "ovq/text/documents.h"
#include "ovq/text/json_tokenizer.h"
#include "ovq/text/regex.h"
#include "ovq/text/text_stream.h"
#include "ovq/text/token_file.h"
#include "ovq/text/tokenizer_training.h"
#include "ovq/text/utf8.h"

namespace ovq::fuzz {
namespace {

constexpr const char* kText =
    "It was a bright cold day in spring, and the clocks were striking.\nThe old captain went home with her brother; "
    "na\xC3\xAFve caf\xC3\xA9 \xE2\x80\x94 \xF0\x9F\x90\xA6.\nNothing was lost under the storm that night.\n";

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Safetensors: the header is checked when a file is opened, the data by verify.
void read_safetensors(std::string_view bytes) {
  const files::Safetensors file(file_of(bytes));
  for (const files::FileTensor& tensor : file.tensors()) (void)file.find(tensor.name)->bytes.size();
  (void)file.verify();
}

std::vector<std::string> safetensors_seeds() {
  const std::vector<float> data(24, 1.5f);
  const auto as_bytes = std::as_bytes(std::span(data));
  const std::vector<files::FileTensor> tensors = {
      {"weight", files::Dtype::f32, {2, 3, 4}, as_bytes},
      {"scale", files::Dtype::f32, {}, as_bytes.first(4)},
      {"none", files::Dtype::bf16, {0, 7}, {}},
      {"half", files::Dtype::f16, {48}, as_bytes},
  };
  std::vector<std::string> seeds;
  for (size_t count = 0; count <= tensors.size(); count += 2) {
    const std::string path = file_of("");
    files::save_safetensors(path, std::span(tensors).first(count), {.metadata = {{"format", "pt"}, {"name", "a\"b"}}});
    seeds.push_back(content_of(path));
  }
  return seeds;
}

// States: as they are and, since nothing gets past a checksum by chance, with the checksum made right. What is read is
// used, and written again.
void read_state(std::string_view bytes) {
  std::string sealed(bytes);
  if (sealed.size() >= sizeof(uint64_t)) {
    Fnv1a checksum;
    checksum.add(bytes_of(sealed).first(sealed.size() - sizeof(uint64_t)));
    const uint64_t value = checksum.value();
    std::memcpy(&sealed[sealed.size() - sizeof(value)], &value, sizeof(value));
  }
  std::istringstream in(sealed);
  kernels::OvqState state = kernels::OvqState::read(in);
  const kernels::OvqShape& shape = state.shape();
  if (shape.batch > 4 || shape.kv_heads > 4 || shape.key_dim > 64 || shape.value_dim > 64) return;
  const auto tokens = static_cast<size_t>(shape.batch * shape.kv_heads);
  std::vector<float> k(tokens * shape.key_dim, 0.5f), v(tokens * shape.value_dim, 1.0f), o(v.size());
  std::vector<float> beta(shape.kv_heads, 2.0f), weights(tokens, 1.0f);
  const auto view = [&](std::vector<float>& x, int64_t dim) {
    return kernels::View<float>::contiguous(x.data(), shape.batch, 1, shape.kv_heads, dim);
  };
  kernels::ovq_attention_forward({.q = view(k, shape.key_dim),
                                  .k = view(k, shape.key_dim),
                                  .v = view(v, shape.value_dim),
                                  .beta = beta,
                                  .weights = state.options().weighted ? view(weights, 1) : kernels::View<float>{},
                                  .options = state.options()},
                                 {.o = view(o, shape.value_dim)}, std::span(&state, 1));
  std::ostringstream out;
  state.write(out);
}

std::vector<std::string> state_seeds() {
  std::vector<std::string> seeds;
  for (const bool weighted : {false, true}) {
    for (const bool rope : {false, true}) {
      const kernels::OvqOptions options{.chunk = 4, .centroids = 6, .rope = rope, .weighted = weighted};
      kernels::OvqState state({.batch = 1, .kv_heads = 2, .key_dim = 6, .value_dim = 5}, options);
      const int64_t time = 15;
      std::vector<float> k(time * 2 * 6), v(time * 2 * 5), o(v.size()), weights(time * 2, 0.5f), beta(2, 3.0f);
      for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>((i * 7919 % 31)) / 31.0f - 0.5f;
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 13);
      const auto view = [&](std::vector<float>& x, int64_t dim) {
        return kernels::View<float>::contiguous(x.data(), 1, time, 2, dim);
      };
      kernels::ovq_attention_forward({.q = view(k, 6),
                                      .k = view(k, 6),
                                      .v = view(v, 5),
                                      .beta = beta,
                                      .weights = weighted ? view(weights, 1) : kernels::View<float>{},
                                      .options = options},
                                     {.o = view(o, 5)}, std::span(&state, 1));
      for (const auto dtype : {kernels::StateDtype::float32, kernels::StateDtype::bfloat16}) {
        std::ostringstream out;
        state.to(dtype).write(out);
        seeds.push_back(out.str());
      }
    }
  }
  return seeds;
}

// Files of tokens, with both checksums made right.
void read_token_file(std::string_view bytes) {
  constexpr size_t kHeader = 128, kBody = 120, kOwn = 124;
  std::string sealed(bytes);
  if (sealed.size() >= kHeader) {
    Crc32c body;
    body.add(bytes_of(sealed).subspan(kHeader));
    const uint32_t of_body = body.value();
    std::memcpy(&sealed[kBody], &of_body, sizeof(of_body));
    Crc32c header;
    header.add(bytes_of(sealed).first(kOwn));
    const uint32_t of_header = header.value();
    std::memcpy(&sealed[kOwn], &of_header, sizeof(of_header));
  }
  const std::string path = file_of(sealed);
  (void)text::is_token_file(path);
  const text::TokenFile file(path);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(file.tokens(), 1 << 16)));
  text::copy_tokens(tokens, file.data(), file.token_bytes());
}

std::vector<std::string> token_file_seeds() {
  const std::filesystem::path folder = file_of("") + ".folder";
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "one.txt") << kText;
  std::ofstream(folder / "two.txt") << "Second.";
  const std::string path = (folder / "tokens").string();
  text::write_token_file(path, *text::make_byte_tokenizer(), {folder.string()});
  std::vector<std::string> seeds = {content_of(path)};
  std::filesystem::remove_all(folder);
  return seeds;
}

// A SentencePiece model; what loads is used on text.
void read_tokenizer(std::string_view bytes) {
  const auto tokenizer = text::make_sentencepiece_tokenizer(std::string(bytes), "fuzz");
  (void)tokenizer->decode(tokenizer->encode(kText));
  for (int32_t token = 0; token < std::min<int64_t>(tokenizer->vocab(), 300); ++token) {
    (void)tokenizer->token_name(token);
    (void)tokenizer->token_bytes(token);
  }
}

std::vector<std::string> tokenizer_seeds() {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += kText;
  const std::string path = file_of(lines) + ".txt";
  std::ofstream(path) << lines;
  std::vector<std::string> seeds;
  for (const auto type : {text::TokenizerType::unigram, text::TokenizerType::bpe})
    seeds.push_back(text::train_tokenizer({path}, {.type = type, .vocab = 300}));
  std::filesystem::remove(path);
  return seeds;
}

// A tokenizer.json, and after a byte of value 0 a tokenizer_config.json; what loads is used on text.
void read_tokenizer_json(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string config(bytes.substr(std::min(end + 1, bytes.size())));
  const auto tokenizer =
      text::make_json_tokenizer({.tokenizer = std::string(bytes.substr(0, end)), .config = config}, "fuzz");
  const std::string long_word(200, 'a');
  for (const std::string& input :
       {std::string(kText), std::string(bytes.substr(0, 300)), "  <s> ab\xcc\x81" + long_word}) {
    if (text::valid_prefix(input) != input.size()) continue;
    const std::vector<int32_t> tokens = tokenizer->encode(input);
    for (const int32_t token : tokens) {
      if (token < 0 || token >= tokenizer->vocab()) throw std::logic_error("a token is not in the vocabulary");
    }
    if (tokenizer->encode(input) != tokens) throw std::logic_error("the same text has other tokens");
    (void)tokenizer->encode(input, text::Place::middle);
    const std::string decoded = tokenizer->decode(tokens);
    if (text::valid_prefix(decoded) != decoded.size()) throw std::logic_error("decoded text is not valid");
    text::TextStream stream(*tokenizer, text::Place::start);
    for (const int32_t token : tokens) (void)stream.add(token);
    (void)stream.finish();
  }
  for (int32_t token = 0; token < std::min<int64_t>(tokenizer->vocab(), 300); ++token) {
    (void)tokenizer->token_name(token);
    (void)tokenizer->token_bytes(token);
  }
  may_refuse([&] { (void)text::ChatTemplate::of(tokenizer->chat_template()); });
}

std::vector<std::string> tokenizer_json_seeds() {
  const std::string bytes_model =
      R"("model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": true, "vocab": {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4, "abc": 5, "\u0120a": 6, "h": 7,
        "e": 8, "he": 9, "\u010a": 10, "<x>": 11}, "merges": [["a", "b"], ["ab", "c"], ["\u0120", "a"], ["h", "e"]]})";
  const std::string pieces_model =
      R"("model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": {"<unk>": 0,
        "<s>": 1, "<0x0A>": 2, "\u2581": 3, "a": 4, "t": 5, "at": 6, "\u2581at": 7, "<0xC3>": 8, "<0xA9>": 9},
        "merges": ["a t", "\u2581 at"]})";
  const std::string flags =
      R"("single_word": true, "lstrip": true, "rstrip": true, "normalized": false, "special": true})";
  const std::string byte_level = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})";
  const std::string in_order = R"(, "type_id": 0}})";
  return {
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 11, "content": "<x>", )" +
          flags + R"(, {"id": 12, "content": "day", )" + flags + R"(], "normalizer": {"type": "NFC"}, "pre_tokenizer":
        {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex":
        "(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+"},
        "behavior": "Isolated", "invert": false}, {"type": "Digits", "individual_digits": true}, )" +
          byte_level +
          R"(]}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>")" +
          in_order + R"(, {"Sequence": {"id": "A")" + in_order +
          R"(], "pair": [], "special_tokens": {"<x>": {"id": "<x>",
        "ids": [11], "tokens": ["<x>"]}}}, "decoder": )" +
          byte_level + ", " + bytes_model + "}" + '\0' +
          R"({"bos_token": "<x>", "eos_token": {"content": "day"}, "add_bos_token": true, "chat_template": "x"})",
      R"({"added_tokens": [{"id": 1, "content": "<s>", )" + flags +
          R"(], "normalizer": {"type": "Sequence", "normalizers":
        [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern":
        {"String": " "}, "content": "\u2581"}]}, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace",
        "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip",
        "content": " ", "start": 1, "stop": 0}]}, )" +
          pieces_model + "}",
      R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": "at"}, "behavior":
        "MergedWithNext", "invert": true}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
        "split": true}]}, "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}, )" +
          pieces_model + "}",
      R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\b[\\w']+\\b|(?<=a)b*|[^\\S\\n]++|x{2,3}"}, "behavior":
        "Contiguous", "invert": false}, "decoder": )" +
          byte_level + ", " + pieces_model + "}"};
}

// A pattern of a tokenizer.json, and after the first line break the text to search.
void read_pattern(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string text(bytes.substr(std::min(end + 1, bytes.size())));
  if (text::valid_prefix(bytes) != bytes.size()) return;
  const text::Regex regex(bytes.substr(0, end));
  size_t done = 0;
  text::for_each_match(regex, text, [&](text::Regex::Match match) {
    const bool ordered = done <= match.begin && match.begin <= match.end && match.end <= text.size();
    if (!ordered || text::valid_prefix(std::string_view(text).substr(0, match.end)) != match.end)
      throw std::logic_error("a match is out of place");
    done = match.end;
  });
}

std::vector<std::string> pattern_seeds() {
  const std::string patterns[] = {
      R"((?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"(\b[\w']+\b|(?<=\W)\h{2}|(?>a+)b|^\t*|[^\S\n]++|x{,3}?|.$)",
      R"([\x{4e00}-\u9fa5\-\]&]*\p{Han}|\P{Lu}\p{^M}|\A\D\z)"};
  std::vector<std::string> seeds;
  for (const std::string& pattern : patterns) seeds.push_back(pattern + "\n" + kText);
  return seeds;
}

void read_text(std::string_view bytes) {
  const size_t valid = text::valid_prefix(bytes);
  if (text::valid_prefix(bytes.substr(0, valid)) != valid) throw std::logic_error("a valid prefix is not valid");
  const std::string repaired = text::repaired(bytes);
  if (text::valid_prefix(repaired) != repaired.size()) throw std::logic_error("repaired text is not valid");
  if (text::complete_prefix(bytes) > bytes.size()) throw std::logic_error("a prefix is longer than its text");
  const auto tokenizer = text::make_byte_tokenizer();
  if (tokenizer->decode(tokenizer->encode(bytes)) != bytes) throw std::logic_error("bytes are not given back");
  const std::string path = file_of(bytes);
  (void)text::read_utf8_file("fuzz", path);
}

std::vector<std::string> text_seeds() { return {kText, "a", "\xEF\xBB\xBF start"}; }

// Questions of a benchmark, which the first byte chooses.
void read_questions(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::vector<std::string> names = tasks::benchmark_names();
  const std::string& name = names[static_cast<unsigned char>(bytes.front()) % names.size()];
  const std::string path = file_of(bytes.substr(1));
  const auto tokenizer = text::make_byte_tokenizer();
  for (const tasks::Question& question : tasks::read_questions(tasks::benchmark_from_name(name), path)) {
    for (const tasks::Choice& choice : question.choices) (void)tasks::encode(choice, *tokenizer);
  }
}

std::vector<std::string> question_seeds() {
  const std::string lines[] = {
      R"({"goal": "To open a jar,", "sol1": "twist the lid.", "sol2": "paint it.", "label": 0})",
      R"({"ind": 1, "activity_label": "Sailing", "ctx_a": "A ship leaves.", "ctx_b": "the captain", "endings": ["waves.", "bakes [step] bread.", "sleeps.", "reads."], "label": 0})",
      R"({"sentence": "The trophy does not fit because _ is too large.", "option1": "the trophy", "option2": "the case", "answer": "1"})",
      R"({"id": "q", "question": {"stem": "What is wet?", "choices": [{"text": "water", "label": "A"}, {"text": "sand", "label": "B"}]}, "answerKey": "A"})"};
  std::vector<std::string> seeds;
  for (size_t i = 0; i < std::size(lines); ++i)
    seeds.push_back(std::string(1, static_cast<char>(i)) + lines[i] + "\n" + lines[i] + "\n");
  return seeds;
}

void read_json_lines(std::string_view bytes) {
  for (const JsonLine& line : json_lines(bytes)) {
    if (!line.object.is_discarded()) (void)line.object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

std::vector<std::string> json_line_seeds() {
  return {
      "{\"kind\":\"step\",\"step\":1,\"loss\":4.25,\"rate\":1e-3,\"skipped\":false}\n\n{\"kind\":\"evaluation\","
      "\"step\":1}"
      "\n{\"step\":"};
}

}  // namespace

std::vector<Target> file_targets() {
  return {{"safetensors", read_safetensors, safetensors_seeds},
          {"state", read_state, state_seeds},
          {"token_file", read_token_file, token_file_seeds},
          {"tokenizer", read_tokenizer, tokenizer_seeds},
          {"tokenizer_json", read_tokenizer_json, tokenizer_json_seeds},
          {"pattern", read_pattern, pattern_seeds},
          {"text", read_text, text_seeds},
          {"questions", read_questions, question_seeds},
          {"json_lines", read_json_lines, json_line_seeds}};
}

}  // namespace ovq::fuzz
