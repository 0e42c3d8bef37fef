#include "ovq/text/token_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>

#include "ovq/base/checksum.h"
#include "ovq/base/error.h"
#include "ovq/base/files/durable.h"
#include "ovq/text/documents.h"

namespace ovq::text {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr const char* kOp = "token file";
constexpr std::array<char, 8> kMagic = {'O', 'V', 'Q', 'T', 'O', 'K', 'E', 'N'};
constexpr uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t token_bytes = 0;
  int64_t vocab = 0, tokens = 0, documents = 0, table_bytes = 0;
  std::array<char, 64> tokenizer = {};
  std::array<char, 8> reserved = {};
  uint32_t content_checksum = 0;
  uint32_t header_checksum = 0;

  uint32_t own_checksum() const {
    Crc32c checksum;
    checksum.add(std::as_bytes(std::span(this, 1)).first(offsetof(Header, header_checksum)));
    return checksum.value();
  }
};
static_assert(sizeof(Header) == 128);

template <class Stored>
void append_as(std::vector<std::byte>& to, std::span<const int32_t> tokens) {
  const size_t before = to.size();
  to.resize(before + tokens.size() * sizeof(Stored));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto stored = static_cast<Stored>(tokens[i]);
    std::memcpy(to.data() + before + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class Stored>
void copy_as(std::span<int32_t> to, const std::byte* from) {
  for (size_t i = 0; i < to.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<int32_t>(stored);
  }
}

template <class Value>
void append_value(std::vector<std::byte>& to, const Value& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Parses the list of documents.
class TableReader {
 public:
  TableReader(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  template <class Value>
  Value value() {
    Value value;
    std::memcpy(&value, take(sizeof(Value)).data(), sizeof(Value));
    return value;
  }
  std::string text(size_t size) {
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), size};
  }
  void finish() const { check_data(bytes_.empty(), kOp, path_, " is damaged: bytes follow the last document"); }

 private:
  std::span<const std::byte> take(size_t size) {
    check_data(size <= bytes_.size(), kOp, path_, " is damaged: its list of documents is cut short");
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
};

Header read_header(const std::string& path, std::span<const std::byte> file) {
  Header header;
  check_data(file.size() >= sizeof(header), kOp, path, " is not a file of tokens: it is too short");
  std::memcpy(&header, file.data(), sizeof(header));
  check_data(header.magic == kMagic, kOp, path, " is not a file of tokens: the first bytes are not \"OVQTOKEN\"");
  check_data(header.version == kVersion, kOp, path, " has version ", header.version, "; this program reads ", kVersion);
  check_data(header.header_checksum == header.own_checksum(), kOp, path,
             " is damaged: the header's checksum does not match");
  const auto size = static_cast<int64_t>(file.size() - sizeof(header));
  const bool sound = (header.token_bytes == 1 || header.token_bytes == 2 || header.token_bytes == 4) &&
                     header.vocab >= 1 && bytes_of_tokens(header.vocab) == header.token_bytes && header.tokens >= 0 &&
                     header.documents >= 0 && header.table_bytes >= 0 && header.tokens <= size &&
                     header.table_bytes <= size && header.tokens * header.token_bytes + header.table_bytes == size;
  check_data(sound, kOp, path, " is damaged: its header does not fit its size of ", file.size(), " bytes");
  return header;
}

}  // namespace

int64_t bytes_of_tokens(int64_t vocab) {
  if (vocab - 1 <= std::numeric_limits<uint8_t>::max()) return sizeof(uint8_t);
  return vocab - 1 <= std::numeric_limits<uint16_t>::max() ? sizeof(uint16_t) : sizeof(uint32_t);
}

void append_tokens(std::vector<std::byte>& to, std::span<const int32_t> tokens, int64_t token_bytes) {
  if (token_bytes == 1) append_as<uint8_t>(to, tokens);
  if (token_bytes == 2) append_as<uint16_t>(to, tokens);
  if (token_bytes == 4) append_as<uint32_t>(to, tokens);
}

void copy_tokens(std::span<int32_t> to, const std::byte* from, int64_t token_bytes) {
  if (token_bytes == 1) copy_as<uint8_t>(to, from);
  if (token_bytes == 2) copy_as<uint16_t>(to, from);
  if (token_bytes == 4) copy_as<uint32_t>(to, from);
}

TokenFile::TokenFile(const std::string& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const Header header = read_header(path, bytes);
  const auto content = bytes.subspan(sizeof(header));
  Crc32c checksum;
  checksum.add(content);
  check_data(checksum.value() == header.content_checksum, kOp, path, " is damaged: the checksum does not match");
  vocab_ = header.vocab;
  token_bytes_ = header.token_bytes;
  tokens_ = header.tokens;
  tokenizer_ = std::string(header.tokenizer.data(), strnlen(header.tokenizer.data(), header.tokenizer.size()));
  data_ = content.data();
  TableReader table(path, content.subspan(static_cast<size_t>(tokens_ * token_bytes_)));
  int64_t start = 0;
  for (int64_t i = 0; i < header.documents; ++i) {
    TokenDocument document{.start = start, .tokens = table.value<int64_t>(), .text_bytes = table.value<int64_t>()};
    check_data(document.tokens >= 0 && document.tokens <= tokens_ - start && document.text_bytes >= 0, kOp, path,
               " is damaged: document ", i, " has ", document.tokens, " tokens");
    document.name = table.text(table.value<uint32_t>());
    start += document.tokens;
    documents_.push_back(std::move(document));
  }
  table.finish();
  check_data(start == tokens_, kOp, path, " is damaged: its documents have ", start, " tokens, the file ", tokens_);
}

bool is_token_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, kMagic.size()> magic = {};
  return in.read(magic.data(), magic.size()) && magic == kMagic;
}

TokenizeReport write_token_file(const std::string& path, const Tokenizer& tokenizer,
                                const std::vector<std::string>& texts,
                                const std::function<void(const TokenDocument&)>& each) {
  const std::vector<std::string> paths = document_paths(kOp, texts);
  TokenizeReport report;
  files::write_file_durably(path, [&](files::OutputFile& out) {
    Header header{.token_bytes = static_cast<uint32_t>(bytes_of_tokens(tokenizer.vocab())),
                  .vocab = tokenizer.vocab(),
                  .documents = static_cast<int64_t>(paths.size())};
    const std::string identity = tokenizer.identity();
    std::copy(identity.begin(), identity.end(), header.tokenizer.begin());
    Crc32c checksum;
    const auto write = [&](std::span<const std::byte> bytes) {
      checksum.add(bytes);
      out.write(bytes);
    };
    out.write(std::as_bytes(std::span(&header, 1)));  // reserves its place; its content is known at the end
    std::vector<std::byte> table;
    for (const std::string& document : paths) {
      const std::string text = read_text_file(kOp, document);
      std::vector<int32_t> tokens;
      try {
        tokens = tokenizer.encode_document(text);
      } catch (const std::invalid_argument& error) {
        fail_data(kOp, document, ": ", error.what());
      }
      std::vector<std::byte> stored;
      append_tokens(stored, tokens, header.token_bytes);
      write(stored);
      const TokenDocument done{.name = document,
                               .start = header.tokens,
                               .tokens = static_cast<int64_t>(tokens.size()),
                               .text_bytes = static_cast<int64_t>(text.size())};
      append_value(table, done.tokens);
      append_value(table, done.text_bytes);
      append_value(table, static_cast<uint32_t>(done.name.size()));
      const auto name = std::as_bytes(std::span(done.name));
      table.insert(table.end(), name.begin(), name.end());
      header.tokens += done.tokens;
      report.text_bytes += done.text_bytes;
      if (each) each(done);
    }
    write(table);
    header.table_bytes = static_cast<int64_t>(table.size());
    header.content_checksum = checksum.value();
    header.header_checksum = header.own_checksum();
    out.write_at(0, std::as_bytes(std::span(&header, 1)));
    report.documents = header.documents;
    report.tokens = header.tokens;
  });
  return report;
}

}  // namespace ovq::text
