// The reader against invalid files.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "ovq/base/files/safetensors.h"
#include "tests/base/files/fixtures.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

std::string repeated(std::string_view text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

// One tensor "a" with these fields.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string two_tensors(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

struct Hostile {
  std::string header, data, why;
};

std::vector<Hostile> hostile_headers() {
  const std::string four(4, 'x'), eight(8, 'x'), f32 = R"("F32")", u8 = R"("U8")";
  return {
      // Not JSON, or not an object.
      {"", "", "first byte"},
      {" {}", "", "first byte"},
      {"\xef\xbb\xbf{}", "", "first byte"},
      {"[]", "", "first byte"},
      {"null", "", "first byte"},
      {"{", "", "not JSON"},
      {"{}}", "", "not JSON"},
      {"{} {}", "", "not JSON"},
      {R"({"a":1,})", "", "got 1; must be an object"},
      {R"({"a" {}})", "", "not JSON"},
      {"{}// comment", "", "not JSON"},
      {std::string("{}\0", 3), "", "zero byte"},
      {std::string("{}\0garbage", 10), "", "zero byte"},
      {"{\"a\nb\":{}}", "", "not JSON"},
      // Text.
      {"{\"\xff\":{}}", "", "UTF-8"},
      {"{\"\xc0\x80\":{}}", "", "UTF-8"},
      {"{\"\xed\xa0\x80\":{}}", "", "UTF-8"},
      {R"({"\ud800":{}})", "", "not JSON"},
      {R"({"__metadata__":{"k":")"
       "\xf5"
       R"("}})",
       "", "UTF-8"},
      {"{}\xa0", "", "UTF-8"},
      // Structure.
      {R"({"a":null})", "", "got null; must be an object"},
      {R"({"a":[]})", "", "got a list; must be an object"},
      {R"({"a":{}})", "", "lacks dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", four, "lacks dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", four, "lacks dtype, shape or data_offsets"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", four, "lacks dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four, "occurs twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1}})", four, "the field \"extra\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, "\"a\" occurs twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
       four, "\"a\" occurs twice"},
      // Metadata.
      {R"({"__metadata__":[]})", "", "got a list; must be an object"},
      {R"({"__metadata__":{"k":1}})", "", "got 1; must be a text"},
      {R"({"__metadata__":{"k":null}})", "", "got null; must be a text"},
      {R"({"__metadata__":{"k":{}}})", "", "got an object; must be a text"},
      {R"({"__metadata__":{"k":"a","k":"b"}})", "", "\"k\" twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "\"__metadata__\" occurs twice"},
      {R"({"__metadata__":{"ovq.checksum":"crc32c:12345678"}})", "", "checksum"},
      {R"({"__metadata__":{"ovq.checksum":""}})", "", "checksum"},
      // Dtypes.
      {tensor(R"("F31")", "[1]", "[0,4]"), four, "\"F31\", an unknown dtype"},
      {tensor(R"("f32")", "[1]", "[0,4]"), four, "\"f32\", an unknown dtype"},
      {tensor(R"("")", "[1]", "[0,4]"), four, "an unknown dtype"},
      {tensor("1", "[1]", "[0,4]"), four, "got 1; must be a text"},
      {tensor(R"(["F32"])", "[1]", "[0,4]"), four, "got a list; must be a text"},
      // Numbers.
      {tensor(f32, "[-1]", "[0,4]"), four, "got -1; must be integers"},
      {tensor(f32, "[-0]", "[0,0]"), "", "must be integers"},
      {tensor(f32, "[1.0]", "[0,4]"), four, "got \"1.0\"; must be integers"},
      {tensor(f32, "[1e0]", "[0,4]"), four, "must be integers"},
      {tensor(f32, "[\"1\"]", "[0,4]"), four, "must be integers"},
      {tensor(f32, "[true]", "[0,4]"), four, "got a boolean"},
      {tensor(f32, "[NaN]", "[0,4]"), four, "not JSON"},
      {tensor(f32, "[01]", "[0,4]"), four, "not JSON"},
      {tensor(f32, "[9223372036854775808]", "[0,4]"), four, "must be integers"},
      {tensor(f32, "[18446744073709551616]", "[0,4]"), four, "must be integers"},
      {tensor(f32, "[[1]]", "[0,4]"), four, "got a list; must be integers"},
      {tensor(f32, "[1,{}]", "[0,4]"), four, "got an object; must be integers"},
      {tensor(f32, "1", "[0,4]"), four, "must be a list of integers"},
      {tensor(f32, "{}", "[0,4]"), four, "must be a list of integers"},
      {tensor(f32, "[1" + repeated(",1", 64) + "]", "[0,4]"), four, "more than 64 dimensions"},
      // Sizes: products that wrap to the right value in 64 or 32 bits.
      {tensor(f32, "[2]", "[0,4]"), four, "its shape takes 8 bytes"},
      {tensor(f32, "[]", "[0,8]"), eight, "its shape takes 4 bytes"},
      {tensor(f32, "[0]", "[0,4]"), four, "its shape takes 0 bytes"},
      {tensor(f32, "[4294967296,4294967296]", "[0,0]"), "", "more than 2^63"},
      {tensor(f32, "[4611686018427387905]", "[0,4]"), four, "more than 2^63"},
      {tensor(u8, "[9223372036854775807,2]", "[0,4]"), four, "more than 2^63"},
      {tensor(u8, "[4294967300]", "[0,4]"), four, "its shape takes 4294967300 bytes"},
      // Offsets.
      {tensor(f32, "[1]", "[0]"), four, "has 1 numbers; must be 2"},
      {tensor(f32, "[1]", "[]"), four, "has 0 numbers; must be 2"},
      {tensor(f32, "[1]", "[0,4,4]"), four, "must be two integers"},
      {tensor(f32, "[1]", "[0,-4]"), four, "must be two integers"},
      {tensor(f32, "[1]", "4"), four, "must be two integers"},
      {tensor(f32, "[1]", "[4,0]"), four, "must not end before they begin"},
      {tensor(f32, "[1]", "[4,8]"), eight, "must begin at 0"},
      {tensor(f32, "[2]", "[0,8]"), four, "there are 4 bytes of data"},
      {tensor(f32, "[1]", "[9223372036854775804,9223372036854775807]"), four, "must begin at 0"},
      {tensor(u8, "[9223372036854775807]", "[0,9223372036854775807]"), four, "there are 4 bytes of data"},
      {tensor(f32, "[1]", "[0,4]"), "", "there are 0 bytes of data"},
      {tensor(f32, "[1]", "[0,4]"), four + "x", "there are 5 bytes of data; the tensors take 4"},
      {"{}", "x", "there are 1 bytes of data; the tensors take 0"},
      {two_tensors("[0,4]", "[0,4]"), four, "must begin at 4"},
      {two_tensors("[0,4]", "[2,6]"), eight, "must begin at 4"},
      {two_tensors("[0,4]", "[5,9]"), eight + "x", "must begin at 4"},
      {two_tensors("[0,4]", "[4,7]"), four + "xxx", "its shape takes 4 bytes"},
      // Deep nesting, at every place where a value may stand.
      {"{\"a\":" + repeated("[", 1'000'000), "", "got a list"},
      {repeated("{\"a\":", 1'000'000), "", "the field \"a\""},
      {R"({"a":{"dtype":)" + repeated("{\"a\":", 1'000'000), "", "got an object"},
      {R"({"__metadata__":)" + repeated("{\"a\":", 1'000'000), "", "got an object"},
      {R"({"a":{"shape":)" + repeated("[", 1'000'000), "", "got a list"},
      {R"({"a":{"shape":)" + repeated("[", 500'000) + repeated("]", 500'000) + "}}", "", "got a list"},
  };
}

TEST(SafetensorsHostile, Headers) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "hostile";
  for (const Hostile& hostile : hostile_headers()) {
    put_file(path, safetensors_bytes(hostile.header, hostile.data));
    const std::string error = rejection(path);
    const std::string shown = hostile.header.substr(0, 200);
    EXPECT_NE(error.find(hostile.why), std::string::npos) << shown << "\n  got: " << error;
    EXPECT_TRUE(error.starts_with("[Safetensors] " + path.string() + ": ")) << error;
    EXPECT_LE(error.size(), 1000u) << shown;
  }
}

TEST(SafetensorsHostile, UnusualButValid) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "valid";
  const std::string four(4, 'x');
  const Hostile valid[] = {
      {"{}", "", ""},
      {"{ \t\r\n } \n", "", ""},
      {R"({"__metadata__":{}})", "", ""},
      {tensor(R"("F32")", "[]", "[0,4]"), four, ""},
      {tensor(R"("F32")", "[9223372036854775807,0]", "[0,0]"), "", ""},
      {R"({"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four, ""},
      {R"({"\u0000\ud83d\ude00":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four, ""},
      {two_tensors("[4,8]", "[0,4]"), four + four, ""},
      {R"({"b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       four, ""},
  };
  for (const Hostile& file : valid) {
    put_file(path, safetensors_bytes(file.header, file.data));
    EXPECT_EQ(rejection(path), "") << file.header;
  }
}

// Error messages go to terminals.
TEST(SafetensorsHostile, MessagesHoldNoControlCharacters) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "hostile";
  put_file(path, safetensors_bytes(R"({"\u001b[2J\u0007)" + std::string(5000, 'n') + R"(":1})"));
  const std::string error = rejection(path);
  EXPECT_LE(error.size(), 1000u);
  for (const char c : error) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
}

TEST(SafetensorsHostile, HeaderLengths) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "hostile";
  const auto error_for = [&](uint64_t length, uint64_t file_bytes) {
    put_file(path, {reinterpret_cast<const char*>(&length), sizeof(length)});
    fs::resize_file(path, file_bytes);  // sparse
    return rejection(path);
  };
  for (uint64_t bytes = 0; bytes < 8; ++bytes) {
    EXPECT_NE(error_for(2, bytes).find("a header length alone takes 8"), std::string::npos);
  }
  EXPECT_NE(error_for(1, 8).find("only 0 bytes follow"), std::string::npos);
  EXPECT_NE(error_for(93, 100).find("only 92 bytes follow"), std::string::npos);
  EXPECT_NE(error_for(100'000'001, 200'000'000).find("must be at most 100000000"), std::string::npos);
  EXPECT_NE(error_for(100'000'000, 100'000'008).find("first byte"), std::string::npos);
  for (const uint64_t length : {~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 63, uint64_t{1} << 32}) {
    EXPECT_NE(error_for(length, 4096).find("must be at most 100000000"), std::string::npos) << length;
  }
}

// A small file of ours, and its content in a form to compare.
class SafetensorsDamage : public testing::Test {
 protected:
  void SetUp() override {
    const std::string weights(24, 'w'), bias = "0123", flag = "\1";
    const FileTensor tensors[] = {
        {.name = "weight", .dtype = Dtype::f32, .shape = {2, 3}, .bytes = bytes_of(weights)},
        {.name = "bias", .dtype = Dtype::bf16, .shape = {2}, .bytes = bytes_of(bias)},
        {.name = "flag", .dtype = Dtype::boolean, .shape = {}, .bytes = bytes_of(flag)},
        {.name = "none", .dtype = Dtype::u8, .shape = {0, 5}},
    };
    save_safetensors(path_, tensors, {.metadata = {{"step", "17"}, {"note", "a\\b"}}});
    bytes_ = get_file(path_);
    content_ = content();
  }

  std::string content() const {
    const Safetensors file(path_);
    std::ostringstream out;
    for (const auto& [key, text] : file.metadata()) out << key << "=" << text << "\n";
    for (const FileTensor& tensor : file.tensors()) {
      out << tensor.name << " " << dtype_name(tensor.dtype) << testing::PrintToString(tensor.shape)
          << text_of(tensor.bytes) << "\n";
    }
    return out.str();
  }

  // Whether the file is rejected, or has no checksum (which also rejects a file of ours), or has the same content.
  testing::AssertionResult survives(const std::string& damaged) const {
    put_file(path_, damaged);
    try {
      if (Safetensors(path_).verify() == Integrity::absent) return testing::AssertionSuccess();
    } catch (const std::runtime_error&) {
      return testing::AssertionSuccess();
    }
    if (content() == content_) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "verified, but it is\n" << content();
  }

  TemporaryDirectory directory_;
  fs::path path_ = directory_.path() / "x";
  std::string bytes_, content_;
};

TEST_F(SafetensorsDamage, EveryTruncationIsAnError) {
  for (size_t length = 0; length < bytes_.size(); ++length) {
    put_file(path_, bytes_.substr(0, length));
    EXPECT_NE(rejection(path_), "") << "the first " << length << " bytes";
  }
  put_file(path_, bytes_ + "x");
  EXPECT_NE(rejection(path_), "");
}

TEST_F(SafetensorsDamage, EveryFlippedByteIsSeen) {
  for (size_t at = 0; at < bytes_.size(); ++at) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string damaged = bytes_;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      ASSERT_TRUE(survives(damaged)) << "byte " << at << " ^ " << flip;
    }
  }
}

TEST_F(SafetensorsDamage, EveryFlippedBitOfTheDataIsAnError) {
  for (size_t at = bytes_.size() - 29; at < bytes_.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes_;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      put_file(path_, damaged);
      EXPECT_NO_THROW(Safetensors{path_});
      EXPECT_NE(rejection(path_).find("checksum"), std::string::npos) << "byte " << at << ", bit " << bit;
    }
  }
}

// Valid headers with other content: only the checksum can reveal them.
TEST_F(SafetensorsDamage, ChangedHeadersAreErrors) {
  const std::pair<std::string, std::string> changes[] = {
      {"\"F32\"", "\"I32\""},   {"[2,3]", "[3,2]"}, {"weight", "height"}, {"\"17\"", "\"18\""},
      {"\"step\"", "\"stop\""}, {"[0,5]", "[0,6]"}, {"BF16", " F16"},
  };
  for (const auto& [from, to] : changes) {
    std::string damaged = bytes_;
    const size_t at = damaged.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    damaged.replace(at, from.size(), to);
    put_file(path_, damaged);
    EXPECT_NE(rejection(path_), "") << from << " -> " << to;
  }
}

}  // namespace
}  // namespace ovq::files::test
