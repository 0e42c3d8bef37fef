#include "ovq/base/files/numbered_directories.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/base/files/fixtures.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

std::vector<int64_t> numbers(const fs::path& directory) {
  std::vector<int64_t> result;
  for (const NumberedDirectory& found : latest_first(directory, "step-")) result.push_back(found.number);
  return result;
}

TEST(NumberedDirectories, Names) {
  EXPECT_EQ(numbered_path("run", "step-", 123), "run/step-000123");
  EXPECT_EQ(numbered_path("run", "step-", 0), "run/step-000000");
  EXPECT_EQ(numbered_path("run", "step-", 12345678), "run/step-12345678");
  EXPECT_THROW(numbered_path("run", "step-", -1), std::invalid_argument);
}

TEST(NumberedDirectories, LatestComesFirst) {
  const TemporaryDirectory directory;
  for (const int64_t number : {7, 100, 99, 1000000, 0}) {
    fs::create_directory(numbered_path(directory.path(), "step-", number));
  }
  for (const char* other : {"step-", "step-12a", "step--5", "step-+5", "step- 5", "step-000050.part-12-0", "best",
                            "Step-000001", "xstep-000001", "step-99999999999999999999"}) {
    fs::create_directory(directory.path() / other);
  }
  put_file(directory.path() / "step-000777", "a file");
  EXPECT_EQ(numbers(directory.path()), (std::vector<int64_t>{1000000, 100, 99, 7, 0}));
  EXPECT_EQ(latest_first(directory.path(), "step-")[1].path, directory.path() / "step-000100");
}

TEST(NumberedDirectories, AMissingDirectoryHasNone) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(latest_first(directory.path() / "missing", "step-").empty());
  keep_last(directory.path() / "missing", "step-", 3);
  put_file(directory.path() / "file", "");
  EXPECT_THROW(latest_first(directory.path() / "file", "step-"), std::runtime_error);
}

TEST(NumberedDirectories, KeepsTheLast) {
  const TemporaryDirectory directory;
  for (int64_t number = 1; number <= 5; ++number) {
    const fs::path path = numbered_path(directory.path(), "step-", number);
    fs::create_directories(path / "below");
    put_file(path / "below" / "file", "content");
  }
  keep_last(directory.path(), "step-", 9);
  EXPECT_EQ(numbers(directory.path()), (std::vector<int64_t>{5, 4, 3, 2, 1}));
  keep_last(directory.path(), "step-", 2);
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"step-000004", "step-000005"}));
  EXPECT_EQ(get_file(directory.path() / "step-000004" / "below" / "file"), "content");
}

TEST(NumberedDirectories, BadArguments) {
  EXPECT_THROW(keep_last("run", "step-", 0), std::invalid_argument);
  EXPECT_THROW(keep_last("run", "step-", -1), std::invalid_argument);
  EXPECT_THROW(latest_first("run", ""), std::invalid_argument);
  EXPECT_THROW(latest_first("run", "a/b"), std::invalid_argument);
}

}  // namespace
}  // namespace ovq::files::test
