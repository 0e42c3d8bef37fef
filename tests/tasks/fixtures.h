// Shared by tests of the tasks: rows of a batch, expected errors, temporary files, and checks that every batch must
// pass.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/tasks/task.h"

namespace ovq::tasks::test {

inline std::span<const int32_t> row_of(const Batch& batch, const std::vector<int32_t>& values, int64_t row) {
  return std::span(values).subspan(static_cast<size_t>(row * batch.length), static_cast<size_t>(batch.length));
}

inline bool equal(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.length == b.length && a.tokens == b.tokens && a.targets == b.targets &&
         a.groups == b.groups;
}

// The message of the std::invalid_argument that `call` throws; "" if it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// Sizes, vocabulary, and targets and groups in the same places. Returns the number of targets.
inline int64_t expect_sound(const Task& task, const SampleRequest& request, const Batch& batch) {
  EXPECT_EQ(batch.rows, request.rows);
  EXPECT_EQ(batch.length, task.row_length(request.length, request.split));
  const auto size = static_cast<size_t>(batch.rows * batch.length);
  EXPECT_EQ(batch.tokens.size(), size);
  EXPECT_EQ(batch.targets.size(), size);
  EXPECT_EQ(batch.groups.size(), size);
  int64_t targets = 0, wrong = 0;
  for (size_t i = 0; i < size; ++i) {
    const bool asked = batch.targets[i] != kNoTarget;
    targets += asked;
    wrong += batch.tokens[i] < 0 || batch.tokens[i] >= task.vocab();
    wrong += batch.targets[i] < kNoTarget || batch.targets[i] >= task.vocab();
    wrong += asked ? batch.groups[i] < 0 : batch.groups[i] != kNoGroup;
  }
  EXPECT_EQ(wrong, 0);
  return targets;
}

// At every target, the next input is the answer (for all tasks but mqar).
inline void expect_shifted(const Batch& batch) {
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto tokens = row_of(batch, batch.tokens, row), targets = row_of(batch, batch.targets, row);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (targets[i] != kNoTarget) {
        ASSERT_EQ(targets[i], tokens[i + 1]) << "row " << row << ", position " << i;
      }
    }
  }
}

// A temporary folder for the running test.
class Folder {
 public:
  Folder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    const std::string test = std::string(info->test_suite_name()) + "_" + info->name();
    path_ = std::filesystem::path(testing::TempDir()) / ("ovq_" + std::to_string(getpid()) + "_" + test);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace ovq::tasks::test
