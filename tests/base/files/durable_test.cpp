// Durable writes: results, errors, leftovers. What happens to killed writers is in crash_test.cpp.
#include "ovq/base/files/durable.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/base/files/fixtures.h"

namespace ovq::files::test {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

// Writes beyond `bytes` fail with EFBIG during its lifetime: simulates a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    before_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_;
  void (*before_handler_)(int);
};

TEST(DurableFile, OpenPartsCanBeRemovedAtOnce) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "file";
  const auto files = [&] { return std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()); };
  write_file_durably(path, "kept");
  remove_open_parts();
  EXPECT_EQ(files(), 1);
  try {
    write_file_durably(path, [&](OutputFile& file) {
      file.write("half");
      EXPECT_EQ(files(), 2);
      remove_open_parts();  // as a signal handler does, before it ends the process
      EXPECT_EQ(files(), 1);
      throw std::runtime_error("the end");
    });
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(get_file(path), "kept");
}

TEST(DurableFile, CreatesAndReplaces) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "file";
  write_file_durably(path, "first, longer");
  EXPECT_EQ(get_file(path), "first, longer");
  write_file_durably(path, [](OutputFile& file) {
    file.write("sec");
    file.write("ond");
  });
  EXPECT_EQ(get_file(path), "second");
  write_file_durably(path, "");
  EXPECT_EQ(get_file(path), "");
  EXPECT_EQ(directory.names(), Names{"file"});
}

TEST(DurableFile, WhatIsWrittenCanBeWrittenOver) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "a";
  write_file_durably(path, [](OutputFile& file) {
    file.write("0123456789");
    file.write_at(2, bytes_of("xyz"));
    file.write("end");
  });
  EXPECT_EQ(get_file(path), "01xyz56789end");
}

TEST(DurableFile, NamesWithoutADirectoryAreOfTheCurrentOne) {
  const TemporaryDirectory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path());
  write_file_durably("file", "content");
  write_directory_durably("below", [](const fs::path& aside) { put_file(aside / "x", "y"); });
  remove_durably("file");
  fs::current_path(before);
  EXPECT_EQ(directory.names(), Names{"below"});
}

TEST(DurableFile, AFailedWriterLeavesTheOldFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "file";
  write_file_durably(path, "old");
  const std::string error = error_of([&] {
    write_file_durably(path, [](OutputFile& file) {
      file.write("half of the n");
      throw std::runtime_error("no more data");
    });
  });
  EXPECT_EQ(error, "no more data");
  EXPECT_EQ(get_file(path), "old");
  EXPECT_EQ(directory.names(), Names{"file"});
}

TEST(DurableFile, AFullDiskLeavesTheOldFile) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "file";
  write_file_durably(path, "old");
  std::string error;
  {
    const FileSizeLimit limit(4096);
    error = error_of([&] { write_file_durably(path, std::string(10000, 'x')); });
  }
  EXPECT_EQ(error, "[OutputFile] cannot write " + path.string() + ": File too large");
  EXPECT_EQ(get_file(path), "old");
  EXPECT_EQ(directory.names(), Names{"file"});
}

TEST(DurableFile, AFullDeviceIsAnError) {
  OutputFile file(Descriptor(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "weights");
  EXPECT_EQ(error_of([&] { file.write("x"); }), "[OutputFile] cannot write weights: No space left on device");
}

TEST(DurableFile, UnwritablePlacesAreErrors) {
  const TemporaryDirectory directory;
  put_file(directory.path() / "file", "");
  fs::create_directories(directory.path() / "full" / "below");
  const auto error = [&](const fs::path& path) { return error_of([&] { write_file_durably(path, "x"); }); };
  EXPECT_NE(error(directory.path() / "file" / "x").find("Not a directory"), std::string::npos);
  EXPECT_NE(error(directory.path() / "missing" / "x").find("No such file or directory"), std::string::npos);
  EXPECT_NE(error(directory.path() / "full").find("Is a directory"), std::string::npos);
  EXPECT_NE(error(directory.path() / std::string(300, 'n')).find("File name too long"), std::string::npos);
  EXPECT_EQ(directory.names(), (Names{"file", "full"}));
}

TEST(DurableFile, BadPaths) {
  for (const char* path : {"", "/", ".", "..", "x/", "x/.."}) {
    EXPECT_THROW(write_file_durably(path, "x"), std::invalid_argument) << path;
  }
  for (const char* path : {"", "/", ".", "..", "x/.."}) {
    EXPECT_THROW(write_directory_durably(path, [](const fs::path&) {}), std::invalid_argument) << path;
    EXPECT_THROW(remove_durably(path), std::invalid_argument) << path;
  }
}

void put_example(const fs::path& directory, const std::string& content) {
  put_file(directory / "a", content);
  fs::create_directory(directory / "below");
  put_file(directory / "below" / "b", content);
}

TEST(DurableDirectory, IsHiddenUntilItIsWhole) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "new";
  write_directory_durably(path, [&](const fs::path& aside) {
    put_example(aside, "1");
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(directory.names(), Names{aside.filename()});
    EXPECT_TRUE(aside.filename().string().starts_with("new.part-" + std::to_string(::getpid()) + "-"));
    EXPECT_TRUE(remove_stale_parts(directory.path()).empty());
  });
  EXPECT_EQ(directory.names(), Names{"new"});
  EXPECT_EQ(get_file(path / "a"), "1");
  EXPECT_EQ(get_file(path / "below" / "b"), "1");
}

TEST(DurableDirectory, ASlashAtTheEndMakesNoDifference) {
  const TemporaryDirectory directory;
  write_directory_durably(directory.path() / "new/", [](const fs::path& aside) { put_example(aside, "1"); });
  EXPECT_EQ(directory.names(), Names{"new"});
}

TEST(DurableDirectory, AnExistingOneIsAnErrorBeforeTheWork) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "old";
  fs::create_directory(path);
  const std::string error = error_of([&] { write_directory_durably(path, [](const fs::path&) { FAIL(); }); });
  EXPECT_EQ(error, "[write_directory_durably] cannot create " + path.string() + ": File exists");
}

TEST(DurableDirectory, OneThatAppearsDuringTheWorkIsAnError) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "new";
  const std::string error =
      error_of([&] { write_directory_durably(path, [&](const fs::path&) { fs::create_directory(path); }); });
  EXPECT_NE(error.find("File exists"), std::string::npos) << error;
  EXPECT_EQ(directory.names(), Names{"new"});
}

TEST(DurableDirectory, Replaces) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  for (const char* content : {"1", "2", "3"}) {
    write_directory_durably(
        path, [&](const fs::path& aside) { put_example(aside, content); }, IfExists::replace);
    EXPECT_EQ(get_file(path / "a"), content);
    EXPECT_EQ(get_file(path / "below" / "b"), content);
    EXPECT_EQ(directory.names(), Names{"x"});
  }
}

TEST(DurableDirectory, AFileIsNotReplaced) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  put_file(path, "file");
  const std::string error = error_of([&] {
    write_directory_durably(
        path, [](const fs::path&) {}, IfExists::replace);
  });
  EXPECT_NE(error.find("Not a directory"), std::string::npos) << error;
  EXPECT_EQ(get_file(path), "file");
}

TEST(DurableDirectory, FailuresLeaveTheOldOne) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x";
  write_directory_durably(path, [&](const fs::path& aside) { put_example(aside, "old"); });
  const auto expect_old = [&] {
    EXPECT_EQ(directory.names(), Names{"x"});
    EXPECT_EQ(get_file(path / "below" / "b"), "old");
  };
  const auto fail = [&](const fs::path& aside) {
    put_example(aside, "new");
    throw std::runtime_error("no more data");
  };
  EXPECT_EQ(error_of([&] { write_directory_durably(path, fail, IfExists::replace); }), "no more data");
  expect_old();
  std::string error;
  {
    const FileSizeLimit limit(4096);
    const auto fill = [&](const fs::path& aside) { write_file_durably(aside / "a", std::string(10000, 'x')); };
    error = error_of([&] { write_directory_durably(path, fill, IfExists::replace); });
  }
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  expect_old();
}

TEST(DurableDirectory, UnwritablePlacesAreErrors) {
  const TemporaryDirectory directory;
  put_file(directory.path() / "file", "");
  const auto error = [&](const fs::path& path) {
    return error_of([&] { write_directory_durably(path, [](const fs::path&) {}); });
  };
  EXPECT_NE(error(directory.path() / "file" / "x").find("Not a directory"), std::string::npos);
  EXPECT_NE(error(directory.path() / "missing" / "x").find("No such file or directory"), std::string::npos);
}

TEST(DurableDirectory, TwoStepsReplaceToo) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "x", aside = directory.path() / "x.part-1-1";
  fs::create_directory(path);
  put_example(path, "old");
  fs::create_directory(aside);
  put_example(aside, "new");
  const fs::path old = detail::replace_in_two_steps(aside, path);
  EXPECT_EQ(get_file(path / "below" / "b"), "new");
  EXPECT_EQ(get_file(old / "below" / "b"), "old");
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_EQ(remove_stale_parts(directory.path()), std::vector{old});
  EXPECT_EQ(directory.names(), Names{"x"});

  // The new directory is missing, so the old one must come back.
  EXPECT_NE(error_of([&] { detail::replace_in_two_steps(aside, path); }), "none");
  EXPECT_EQ(directory.names(), Names{"x"});
  EXPECT_EQ(get_file(path / "below" / "b"), "new");
}

TEST(DurableLeftovers, OnlyTheirNamesCount) {
  const TemporaryDirectory directory;
  for (const char* name : {"a.part-12-0", "b.c.part-1-99", "d.part-x.part-3-4"}) put_file(directory.path() / name, "x");
  fs::create_directories(directory.path() / "e.part-5-6" / "below");
  const Names others{".part-1-2",     "a",        "a.part-", "a.part-1",  "a.part-1-",
                     "a.part-1-2.gz", "a.part-x", "a.part",  "a.part--1", "a.part-1-2-3"};
  for (const std::string& name : others) put_file(directory.path() / name, "x");
  fs::create_symlink("a", directory.path() / "link.part-1-2");

  Names removed;
  for (const fs::path& path : remove_stale_parts(directory.path())) removed.push_back(path.filename());
  EXPECT_EQ(removed, (Names{"a.part-12-0", "b.c.part-1-99", "d.part-x.part-3-4", "e.part-5-6"}));
  EXPECT_EQ(directory.names().size(), others.size() + 1);
  EXPECT_TRUE(remove_stale_parts(directory.path()).empty());
  EXPECT_THROW(remove_stale_parts(directory.path() / "missing"), std::runtime_error);
}

// Whoever holds the lock is still writing, whatever the process id in the name.
TEST(DurableLeftovers, LockedOnesStay) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "a.part-999999999-0";
  put_file(path, "x");
  {
    const Descriptor writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::flock(writer.number(), LOCK_EX), 0);
    EXPECT_TRUE(remove_stale_parts(directory.path()).empty());
  }
  EXPECT_EQ(remove_stale_parts(directory.path()), std::vector{path});
}

TEST(DurableLeftovers, TheOldComesBackIfTheNewNeverCame) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() / "x.old-1-2");
  put_example(directory.path() / "x.old-1-2", "old");
  fs::create_directory(directory.path() / "x.part-1-1");
  remove_stale_parts(directory.path());
  EXPECT_EQ(directory.names(), Names{"x"});
  EXPECT_EQ(get_file(directory.path() / "x" / "below" / "b"), "old");
}

TEST(DurableRemove, FilesDirectoriesAndNothing) {
  const TemporaryDirectory directory;
  put_file(directory.path() / "file", "x");
  fs::create_directory(directory.path() / "tree");
  put_example(directory.path() / "tree", "x");
  fs::create_directory_symlink("tree", directory.path() / "link");
  remove_durably(directory.path() / "link");
  EXPECT_EQ(directory.names(), (Names{"file", "tree"}));
  remove_durably(directory.path() / "file");
  remove_durably(directory.path() / "tree/");
  remove_durably(directory.path() / "missing");
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace ovq::files::test
