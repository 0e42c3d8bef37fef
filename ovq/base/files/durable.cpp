#include "ovq/base/files/durable.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>
#include <system_error>

#include "ovq/base/error.h"

namespace ovq::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPart = ".part-", kOld = ".old-";
constexpr int kAttempts = 1000;  // names to try; a name is taken only if a dead process had the same id

fs::path aside_name(const fs::path& target, std::string_view mark) {
  static std::atomic<unsigned> counter = 0;
  fs::path result = target;
  result += mark;
  result += std::to_string(::getpid()) + "-" + std::to_string(counter++);
  return result;
}

struct Leftover {
  std::string_view mark;
  fs::path target;
};

// The reverse of aside_name.
std::optional<Leftover> parse_leftover(const fs::path& path) {
  constexpr std::string_view kNumber = "0123456789";
  const std::string name = path.filename().string();
  for (const std::string_view mark : {kPart, kOld}) {
    const size_t at = name.rfind(mark);
    if (at == std::string::npos || at == 0) continue;
    const std::string_view numbers = std::string_view(name).substr(at + mark.size());
    const size_t dash = numbers.find_first_not_of(kNumber);
    if (dash == 0 || dash == std::string_view::npos || numbers[dash] != '-' || dash + 1 == numbers.size()) continue;
    if (numbers.find_first_not_of(kNumber, dash + 1) != std::string_view::npos) continue;
    return Leftover{mark, path.parent_path() / name.substr(0, at)};
  }
  return std::nullopt;
}

bool occupied(const fs::path& path) { return fs::symlink_status(path).type() != fs::file_type::not_found; }

// Returns `path` without a trailing slash. It must name something that can be renamed.
fs::path checked_target(const char* op, const fs::path& path) {
  const fs::path target = path.has_filename() ? path : path.parent_path();
  check(target.has_filename() && target.filename() != "." && target.filename() != "..", op, "the path is \"",
        path.string(), "\"; must end in a name");
  return target;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void sync_path(const char* op, const fs::path& path) {
  const Descriptor file = open_file(path, O_RDONLY | O_NOFOLLOW);
  if (!file) fail_errno(op, "open", path);
  // EINVAL: the file system has no fsync for this kind of file.
  if (uninterrupted([&] { return ::fsync(file.number()); }) != 0 && errno != EINVAL) fail_errno(op, "fsync", path);
}

// Syncs everything below `directory`, then `directory` itself.
void sync_tree(const char* op, const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    const fs::file_type type = entry.symlink_status().type();
    if (type == fs::file_type::regular || type == fs::file_type::directory) sync_path(op, entry.path());
  }
  sync_path(op, directory);
}

bool try_rename(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0;
}

bool flags_unsupported() { return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP; }

// Fails if `to` exists.
void rename_new(const char* op, const fs::path& from, const fs::path& to) {
  if (try_rename(from, to, RENAME_NOREPLACE)) return;
  if (flags_unsupported()) {
    errno = EEXIST;
    if (!occupied(to) && ::rename(from.c_str(), to.c_str()) == 0) return;
  }
  fail_errno(op, "rename " + from.string() + " to", to);
}

enum class Lock { taken, held_by_another, unsupported };

Lock lock(const Descriptor& file) {
  if (uninterrupted([&] { return ::flock(file.number(), LOCK_EX | LOCK_NB); }) == 0) return Lock::taken;
  return errno == EWOULDBLOCK ? Lock::held_by_another : Lock::unsupported;
}

// The files being written aside. Whoever takes a path out of its slot owns it: its writer, who frees it, or a signal
// handler. If more files are open, the last ones are not listed.
constexpr size_t kMostOpenParts = 16;
std::array<std::atomic<char*>, kMostOpenParts> open_parts;
std::array<char*, kMostOpenParts> removed_parts;  // paths taken by a signal handler, which cannot free them

std::atomic<char*>* list_open_part(const fs::path& path) {
  char* copy = ::strdup(path.c_str());
  for (std::atomic<char*>& slot : open_parts) {
    char* empty = nullptr;
    if (slot.compare_exchange_strong(empty, copy)) return &slot;
  }
  std::free(copy);
  return nullptr;
}

// A locked new file or directory beside the target, removed by the destructor unless `keep` is called.
class Aside {
 public:
  enum class Kind { file, directory };

  Aside(const char* op, const fs::path& target, Kind kind) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      path_ = aside_name(target, kPart);
      if (kind == Kind::directory && ::mkdir(path_.c_str(), 0777) != 0) {
        if (errno == EEXIST) continue;
        fail_errno(op, "create", path_);
      }
      const int flags = kind == Kind::directory ? O_RDONLY | O_DIRECTORY : O_WRONLY | O_CREAT | O_EXCL;
      file_ = open_file(path_, flags);
      if (!file_ && (errno == EEXIST || (errno == ENOENT && kind == Kind::directory))) continue;
      if (!file_) fail_errno(op, "create", path_);
      if (kind == Kind::file) listed_ = list_open_part(path_);
      // Between creation and lock it looked stale, so a cleanup may have removed it.
      struct stat status;
      const bool locked = lock(file_) != Lock::held_by_another;
      if (locked && ::fstat(file_.number(), &status) == 0 && status.st_nlink > 0) return;
      remove();
      unlist();
    }
    errno = EEXIST;
    fail_errno(op, "create", path_);
  }
  Aside(const Aside&) = delete;
  ~Aside() {
    if (!kept_) remove();
    unlist();
  }

  const fs::path& path() const { return path_; }
  // Returns the file's descriptor, including the lock, to its writer.
  Descriptor take_file() { return std::move(file_); }
  void keep() { kept_ = true; }

 private:
  void remove() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void unlist() {
    if (listed_ != nullptr) std::free(listed_->exchange(nullptr));
    listed_ = nullptr;
  }

  fs::path path_;
  Descriptor file_;
  std::atomic<char*>* listed_ = nullptr;  // the slot where a signal handler finds the path
  bool kept_ = false;
};

// Locks a leftover whose writer is dead; returns empty for anything else.
Descriptor lock_stale(const fs::path& path) {
  const std::optional<Leftover> leftover = parse_leftover(path);
  if (!leftover) return {};
  const fs::file_type type = fs::symlink_status(path).type();
  if (type != fs::file_type::regular && type != fs::file_type::directory) return {};
  Descriptor file = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return file && lock(file) == Lock::taken ? std::move(file) : Descriptor();
}

std::vector<fs::path> leftovers(const char* op, const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> result;
  fs::directory_iterator at(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (parse_leftover(at->path())) result.push_back(at->path());
  }
  if (error) {
    errno = error.value();
    fail_errno(op, "list", directory);
  }
  std::sort(result.begin(), result.end());
  return result;
}

class FileStream : public std::streambuf {
 public:
  explicit FileStream(OutputFile& file) : file_(file), buffer_(size_t{1} << 16) { clear(); }

 protected:
  int_type overflow(int_type character) override {
    sync();
    if (!traits_type::eq_int_type(character, traits_type::eof())) sputc(traits_type::to_char_type(character));
    return traits_type::not_eof(character);
  }
  int sync() override {
    file_.write(std::string_view(pbase(), static_cast<size_t>(pptr() - pbase())));
    clear();
    return 0;
  }

 private:
  void clear() { setp(buffer_.data(), buffer_.data() + buffer_.size()); }

  OutputFile& file_;
  std::vector<char> buffer_;
};

}  // namespace

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted([&] { return ::write(file_.number(), bytes.data(), bytes.size()); });
    if (written < 0) fail_errno("OutputFile", "write", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        uninterrupted([&] { return ::pwrite(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (written < 0) fail_errno("OutputFile", "write", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void OutputFile::sync() {
  if (uninterrupted([&] { return ::fsync(file_.number()); }) != 0) fail_errno("OutputFile", "fsync", path_);
}

void write_file_durably(const fs::path& path, std::string_view content) {
  write_file_durably(path, [&](OutputFile& file) { file.write(content); });
}

void write_file_durably(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  constexpr const char* kOp = "write_file_durably";
  check(path.has_filename(), kOp, "the path is \"", path.string(), "\"; must end in the name of a file");
  const fs::path target = checked_target(kOp, path);
  Aside aside(kOp, target, Aside::Kind::file);
  OutputFile file(aside.take_file(), target);
  write(file);
  file.sync();
  if (::rename(aside.path().c_str(), target.c_str()) != 0) {
    fail_errno(kOp, "rename " + aside.path().string() + " to", target);
  }
  aside.keep();
  sync_path(kOp, parent_of(target));
}

fs::path detail::replace_in_two_steps(const fs::path& aside, const fs::path& target) {
  constexpr const char* kOp = "write_directory_durably";
  const fs::path old = aside_name(target, kOld);
  // Locks the old directory so that nobody considers it stale before the new one is in its place.
  const Descriptor old_lock = open_file(target, O_RDONLY | O_DIRECTORY);
  if (!old_lock) fail_errno(kOp, "open", target);
  lock(old_lock);
  rename_new(kOp, target, old);
  try {
    rename_new(kOp, aside, target);
  } catch (...) {
    ::rename(old.c_str(), target.c_str());
    throw;
  }
  return old;
}

void write_stream_durably(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  write_file_durably(path, [&](OutputFile& file) {
    FileStream buffer(file);
    std::ostream out(&buffer);
    out.exceptions(std::ios::badbit | std::ios::failbit);
    write(out);
    out.flush();
  });
}

void write_directory_durably(const fs::path& path, const std::function<void(const fs::path&)>& write,
                             IfExists if_exists) {
  constexpr const char* kOp = "write_directory_durably";
  const fs::path target = checked_target(kOp, path);
  // Checked before and after the work.
  const auto check_target = [&] {
    if (!occupied(target)) return false;
    errno = if_exists == IfExists::fail ? EEXIST : ENOTDIR;
    const bool replaceable = fs::symlink_status(target).type() == fs::file_type::directory;
    if (if_exists == IfExists::fail || !replaceable) fail_errno(kOp, "create", target);
    return true;
  };
  check_target();
  Aside aside(kOp, target, Aside::Kind::directory);
  write(aside.path());
  sync_tree(kOp, aside.path());
  if (!check_target()) {
    rename_new(kOp, aside.path(), target);
    aside.keep();
    sync_path(kOp, parent_of(target));
    return;
  }
  fs::path old = aside.path();
  if (!try_rename(aside.path(), target, RENAME_EXCHANGE)) {
    if (!flags_unsupported()) fail_errno(kOp, "exchange " + aside.path().string() + " with", target);
    old = detail::replace_in_two_steps(aside.path(), target);
  }
  aside.keep();
  sync_path(kOp, parent_of(target));
  std::error_code ignored;  // the new directory is in place; failing to remove the old one is no error
  fs::remove_all(old, ignored);
}

void remove_open_parts() noexcept {
  for (size_t i = 0; i < kMostOpenParts; ++i) {
    char* const path = open_parts[i].exchange(nullptr);
    if (path == nullptr) continue;
    ::unlink(path);
    removed_parts[i] = path;
  }
}

void remove_durably(const fs::path& path) {
  constexpr const char* kOp = "remove_durably";
  const fs::path target = checked_target(kOp, path);
  if (!occupied(target)) return;
  const fs::path aside = aside_name(target, kPart);
  rename_new(kOp, target, aside);
  sync_path(kOp, parent_of(target));
  fs::remove_all(aside);
}

std::vector<fs::path> remove_stale_parts(const fs::path& directory) {
  constexpr const char* kOp = "remove_stale_parts";
  std::vector<fs::path> result;
  for (const fs::path& path : leftovers(kOp, directory)) {
    const Descriptor locked = lock_stale(path);
    if (!locked) continue;
    const Leftover leftover = *parse_leftover(path);
    if (leftover.mark == kOld && !occupied(leftover.target)) {
      rename_new(kOp, path, leftover.target);
    } else {
      fs::remove_all(path);
    }
    result.push_back(path);
  }
  if (!result.empty()) sync_path(kOp, directory);
  return result;
}

}  // namespace ovq::files
