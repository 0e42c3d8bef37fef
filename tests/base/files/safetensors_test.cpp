// Writing files and reading them back, and what the writer rejects.
#include "ovq/base/files/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/files/fixtures.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

constexpr int kDtypeCount = static_cast<int>(Dtype::f64) + 1;

std::string pattern(size_t bytes, int seed) {
  std::string result(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<char>(i * 31 + seed * 7 + 1);
  return result;
}

struct Example {
  std::vector<std::string> storage;
  std::vector<FileTensor> tensors;

  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
    size_t bytes = dtype_bytes(dtype);
    for (const int64_t size : shape) bytes *= size;
    storage.push_back(pattern(bytes, static_cast<int>(storage.size())));
    tensors.push_back({.name = name, .dtype = dtype, .shape = std::move(shape)});
  }
  const std::vector<FileTensor>& finish() {
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = bytes_of(storage[i]);
    return tensors;
  }
};

Example every_dtype() {
  Example example;
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    const std::string name(dtype_name(dtype));
    example.add(name + ".scalar", dtype, {});
    example.add(name + ".vector", dtype, {5});
    example.add(name + ".empty", dtype, {3, 0, 2});
    example.add(name + ".matrix", dtype, {3, 7});
  }
  example.finish();
  return example;
}

void expect_same(const FileTensor* actual, const FileTensor& expected) {
  ASSERT_NE(actual, nullptr) << expected.name;
  EXPECT_EQ(actual->name, expected.name);
  EXPECT_EQ(actual->dtype, expected.dtype) << expected.name;
  EXPECT_EQ(actual->shape, expected.shape) << expected.name;
  EXPECT_EQ(text_of(actual->bytes), text_of(expected.bytes)) << expected.name;
}

TEST(Safetensors, RoundTripOfEveryDtype) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "all.safetensors";
  const Example example = every_dtype();
  for (const Order order : {Order::aligned, Order::given}) {
    save_safetensors(path, example.tensors, {.metadata = {{"format", "pt"}, {"a\"b\n", "ünï"}}, .order = order});
    const Safetensors file(path);
    EXPECT_EQ(file.tensors().size(), example.tensors.size());
    for (const FileTensor& tensor : example.tensors) expect_same(file.find(tensor.name), tensor);
    EXPECT_EQ(file.find("F32"), nullptr);
    EXPECT_EQ(file.find(""), nullptr);
    EXPECT_EQ(file.find("~"), nullptr);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.metadata().at("a\"b\n"), "ünï");
    EXPECT_EQ(file.verify(), Integrity::verified);
    EXPECT_EQ(file.path(), path);
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{"all.safetensors"});
}

TEST(Safetensors, NothingIsAValidFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "none.safetensors";
  save_safetensors(path, {});
  const Safetensors file(path);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().size(), 1u);
  EXPECT_EQ(file.verify(), Integrity::verified);
}

TEST(Safetensors, GivenOrderIsKept) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  Example example;
  example.add("z", Dtype::u8, {3});
  example.add("a", Dtype::f64, {2});
  example.add("m", Dtype::f16, {1});
  save_safetensors(path, example.finish(), {.order = Order::given});
  std::vector<std::string> names;
  const Safetensors file(path);
  for (const FileTensor& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"z", "a", "m"}));
  EXPECT_EQ(text_of(file.find("a")->bytes), example.storage[1]);
}

TEST(Safetensors, EveryTensorIsAlignedToItsElements) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  for (size_t name_length = 1; name_length < 70; ++name_length) {
    Example example;
    example.add(std::string(name_length, 'a'), Dtype::u8, {3});
    example.add("b", Dtype::bf16, {3});
    example.add("c", Dtype::f32, {3});
    example.add("d", Dtype::i64, {3});
    save_safetensors(path, example.finish());
    const Safetensors file(path);
    const auto address = [](const FileTensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.bytes.data()); };
    EXPECT_EQ(address(file.tensors().front()) % kDataAlignment, 0u);
    for (const FileTensor& tensor : file.tensors()) {
      EXPECT_EQ(address(tensor) % dtype_bytes(tensor.dtype), 0u) << tensor.name;
    }
  }
}

TEST(Safetensors, SameContentGivesSameBytes) {
  const TemporaryDirectory directory;
  Example example = every_dtype();
  save_safetensors(directory.path() / "a", example.tensors);
  std::reverse(example.tensors.begin(), example.tensors.end());
  save_safetensors(directory.path() / "b", example.tensors);
  EXPECT_EQ(get_file(directory.path() / "a"), get_file(directory.path() / "b"));
}

// Metadata read from one file and written to another.
TEST(Safetensors, AnOldChecksumIsReplaced) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  Example example;
  example.add("a", Dtype::u8, {3});
  save_safetensors(path, example.finish(), {.metadata = {{kChecksumKey, "crc32c:00000000"}, {"k", "v"}}});
  const Safetensors file(path);
  EXPECT_EQ(file.verify(), Integrity::verified);
  EXPECT_NE(file.metadata().at(kChecksumKey), "crc32c:00000000");
}

// Built byte by byte from the description of the format. The order of the header differs from that of the data, as
// other writers may do.
TEST(Safetensors, ReadsAFileMadeByHand) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "hand.safetensors";
  const std::string header =
      R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[2,10]}, "a":{"shape":[1,1],"data_offsets":[0,2],"dtype":"F16"}})"
      "   ";
  std::string bytes = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  bytes += header;
  bytes += {0x00, 0x3c, 0x01, 0x00, 0x00, 0x00, '\xff', '\xff', '\xff', '\xff'};
  put_file(path, bytes);
  const Safetensors file(path);
  EXPECT_EQ(file.verify(), Integrity::absent);
  EXPECT_TRUE(file.metadata().empty());
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].dtype, Dtype::f16);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(text_of(file.tensors()[0].bytes), std::string("\0\x3c", 2));
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(text_of(file.find("b")->bytes), std::string("\1\0\0\0\xff\xff\xff\xff", 8));
}

TEST(Safetensors, WritesTheBytesOfTheFormat) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  Example example;
  example.add("w", Dtype::u8, {2, 2});
  save_safetensors(path, example.finish());
  const std::string checksum = Safetensors(path).metadata().at(kChecksumKey);
  std::string header = R"({"__metadata__":{"ovq.checksum":")" + checksum +
                       R"("},"w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})";
  header.resize(128 - 8, ' ');
  EXPECT_EQ(get_file(path), safetensors_bytes(header, example.storage[0]));
}

TEST(Safetensors, ObjectsMove) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  Example example;
  example.add("w", Dtype::u8, {4});
  save_safetensors(path, example.finish());
  Safetensors file(path);
  Safetensors moved = std::move(file);
  Safetensors assigned(path);
  assigned = std::move(moved);
  EXPECT_EQ(text_of(assigned.find("w")->bytes), example.storage[0]);
  EXPECT_EQ(assigned.verify(), Integrity::verified);
}

TEST(Safetensors, AnOpenFileOutlivesItsReplacement) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  Example example;
  example.add("w", Dtype::u8, {4});
  save_safetensors(path, example.finish());
  const Safetensors before(path);
  save_safetensors(path, {});
  EXPECT_EQ(before.verify(), Integrity::verified);
  EXPECT_EQ(text_of(before.find("w")->bytes), example.storage[0]);
  EXPECT_TRUE(Safetensors(path).tensors().empty());
}

TEST(Safetensors, MissingFilesAndOtherThingsAreErrors) {
  const TemporaryDirectory directory;
  const auto expect_error = [&](const fs::path& path, const std::string& why) {
    const std::string error = rejection(path);
    EXPECT_NE(error.find(why), std::string::npos) << error;
    EXPECT_NE(error.find(path.string()), std::string::npos) << error;
  };
  expect_error(directory.path() / "missing", "No such file or directory");
  expect_error(directory.path(), "not a regular file");
  ASSERT_EQ(::mkfifo((directory.path() / "pipe").c_str(), 0666), 0);
  expect_error(directory.path() / "pipe", "not a regular file");
  put_file(directory.path() / "file", "");
  expect_error(directory.path() / "file" / "below", "Not a directory");
  expect_error(directory.path() / "file", "0 bytes");
}

TEST(SafetensorsWriter, RefusesWhatMakesNoValidFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  const std::string data(8, 'x');
  const FileTensor good{.name = "a", .dtype = Dtype::f32, .shape = {2}, .bytes = bytes_of(data)};
  const auto refusal = [&](const std::vector<FileTensor>& tensors, const Metadata& metadata = {}) -> std::string {
    try {
      save_safetensors(path, tensors, {.metadata = metadata});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "none";
  };
  const auto with = [&](auto change) {
    FileTensor tensor = good;
    change(tensor);
    return std::vector{tensor};
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(refusal(with([](FileTensor& t) { t.shape = {3}; })),
            "[write_safetensors] tensor \"a\" comes with 8 bytes; its shape takes 12");
  EXPECT_EQ(refusal(with([](FileTensor& t) {
              t.shape = {kHuge, kHuge};
            })),
            "[write_safetensors] tensor \"a\" comes with 8 bytes; its shape takes more than 2^63");
  EXPECT_EQ(refusal(with([](FileTensor& t) {
              t.shape = {-1, -2};
            })),
            "[write_safetensors] tensor \"a\" has a dimension of -1; must not be negative");
  EXPECT_EQ(refusal(with([](FileTensor& t) { t.shape.insert(t.shape.end(), 64, 1); })),
            "[write_safetensors] tensor \"a\" has 65 dimensions; must be at most 64");
  EXPECT_EQ(refusal(with([](FileTensor& t) { t.name = "__metadata__"; })),
            "[write_safetensors] a tensor has the name \"__metadata__\", which the format reserves");
  EXPECT_EQ(refusal({good, good}), "[write_safetensors] two tensors have the name \"a\"");
  EXPECT_NE(refusal(with([](FileTensor& t) { t.name = "\xff"; })).find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal({good}, {{"key", "\xc0\x80"}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal({good}, {{"\xed\xa0\x80", "surrogate"}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal({good}, {{"long", std::string(kMaxHeaderBytes, 'x')}}).find("must be at most 100000000"),
            std::string::npos);
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace ovq::files::test
