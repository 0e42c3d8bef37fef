// Memory grows with the bytes in the file, not with the sizes in its header. This program defines its own operator new.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "ovq/base/files/safetensors.h"
#include "tests/base/files/fixtures.h"

namespace {

size_t largest = 0, total = 0;

void* counted(size_t bytes) noexcept {
  largest = std::max(largest, bytes);
  total += bytes;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

// Not inlined: otherwise GCC warns about free() for memory from new.
[[gnu::noinline]] void release(void* pointer) noexcept { std::free(pointer); }

}  // namespace

void* operator new(size_t bytes) {
  if (void* result = counted(bytes)) return result;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* pointer) noexcept { release(pointer); }
void operator delete(void* pointer, size_t) noexcept { release(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { release(pointer); }

namespace ovq::files::test {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

TEST(SafetensorsMemory, HostileFilesAllocateLittle) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "hostile";
  std::string nested = "{\"a\":";
  nested.append(4 * kMegabyte, '[');
  std::string long_shape = R"({"a":{"shape":[1)";
  for (size_t i = 0; i < kMegabyte; ++i) long_shape += ",1";
  const std::string files[] = {
      std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10),
      safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})"),
      safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1099511627776,0],"data_offsets":[0,4398046511104]}})"),
      safetensors_bytes(nested),
      safetensors_bytes(long_shape),
  };
  for (const std::string& file : files) {
    put_file(path, file);
    largest = total = 0;
    const std::string error = rejection(path);
    const size_t most = largest, sum = total;
    EXPECT_NE(error, "");
    EXPECT_LE(most, kMegabyte / 8) << error;
    EXPECT_LE(sum, kMegabyte / 4) << error;
  }
}

// The data is mapped, not read.
TEST(SafetensorsMemory, NeitherReaderNorWriterCopiesTheData) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "x";
  const std::string data(16 * kMegabyte, 'x');
  const FileTensor tensors[] = {
      {.name = "a", .dtype = Dtype::u8, .shape = {static_cast<int64_t>(data.size())}, .bytes = bytes_of(data)}};
  largest = total = 0;
  save_safetensors(path, tensors);
  const Safetensors file(path);
  EXPECT_EQ(file.verify(), Integrity::verified);
  const size_t sum = total;
  EXPECT_LE(sum, kMegabyte / 4);
}

}  // namespace
}  // namespace ovq::files::test
