#include "ovq/train/run.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "ovq/base/files/durable.h"
#include "ovq/base/format.h"
#include "ovq/base/json_lines.h"
#include "ovq/models/weights.h"

namespace ovq::train {
namespace {

constexpr const char* kRunFile = "run.json";

tasks::TaskDescription describe(const RunOptions& options) {
  json task_options = options.task_options;
  task_options["scale"] = options.scale;
  return tasks::describe_task(options.task, task_options);
}

// Locks a file or directory for this process for as long as the descriptor lives.
files::Descriptor locked(const std::filesystem::path& path, std::chrono::milliseconds patience,
                         const std::string& refusal) {
  constexpr auto kBetweenTries = std::chrono::milliseconds(50);
  files::Descriptor file = files::open_file(path, O_RDONLY);
  if (!file) files::fail_errno("run", "open", path);
  const auto end = std::chrono::steady_clock::now() + patience;
  const auto take = [&] { return ::flock(file.number(), LOCK_EX | LOCK_NB); };
  while (files::uninterrupted(take) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() >= end) throw std::runtime_error(refusal);
    std::this_thread::sleep_for(kBetweenTries);
  }
  return file;
}

}  // namespace

Run::Run(std::filesystem::path path, RunOptions options)
    : path_(std::move(path)), options_(std::move(options)), description_(describe(options_)) {}

void Run::check_new(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / kRunFile)) {
    throw std::runtime_error(path.string() + " already holds a run; continue it with --resume " +
                             shell_word(path.string()) + " or choose another --out");
  }
}

Run Run::create(const std::filesystem::path& path, const RunOptions& options, std::shared_ptr<const tasks::Task> task) {
  check_new(path);
  Run run(path, options);
  if (task) run.tasks_[json::object()] = std::move(task);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw std::runtime_error("cannot create " + path.string() + ": " + error.message());
  files::write_file_durably(path / kRunFile, to_json(options).dump(2) + "\n");
  return run;
}

Run Run::open(const std::filesystem::path& path) {
  std::ifstream in(path / kRunFile);
  if (!in || std::filesystem::is_directory(path / kRunFile))
    throw std::runtime_error(path.string() + " is not a run: cannot open " + (path / kRunFile).string());
  try {
    return {path, run_options_from_json(json::parse(in))};
  } catch (const std::exception& error) {
    throw std::runtime_error((path / kRunFile).string() + ": " + error.what());
  }
}

std::string Run::label() const { return options_.model + " [" + path_.filename().string() + "]"; }

std::shared_ptr<const tasks::Task> Run::task(const json& over) const {
  std::shared_ptr<const tasks::Task>& task = tasks_[over];
  if (task) return task;
  json options = options_.task_options;
  options.merge_patch(over);
  // The tokenizer's file may be gone, or its path may be relative to another directory.
  if (options_.task == "text" && !std::filesystem::exists(options.value("tokenizer", "bytes"))) {
    if (const auto stored = stored_tokenizer(path_)) options["tokenizer"] = stored->string();
  }
  try {
    return task = tasks::make_task(options_.task, options);
  } catch (const std::invalid_argument& error) {  // an error in the run's file, not in the call's arguments
    throw std::runtime_error(error.what());
  }
}

std::optional<std::filesystem::path> Run::checkpoint(const Warn& warn) const { return find_checkpoint(path_, warn); }

TrainedModel Run::load_model(const Warn& warn) const {
  const std::filesystem::path newest = newest_checkpoint(path_, warn);
  return {.checkpoint = newest, .model = models::load_model(newest)};
}

models::ModelConfig Run::config(const Warn& warn) const {
  const auto newest = checkpoint(warn);
  return newest ? checkpoint_config(*newest) : model_config(options_, description_.vocab());
}

files::Descriptor Run::lock(std::chrono::milliseconds patience) const {
  return locked(path_ / kRunFile, patience, path_.string() + " is being trained by another process");
}

std::vector<json> Run::metrics() const { return read_json_lines(metrics_file()); }

void Run::append_metrics(const json& line) const { append_json_line(metrics_file(), line); }

void Run::rewind_metrics(int64_t step) const {
  std::string kept;
  for (const json& line : metrics()) {
    if (line.value("step", int64_t{0}) <= step) kept += line.dump() + "\n";
  }
  files::write_file_durably(metrics_file(), kept);
}

std::vector<json> Run::results() const { return read_json_lines(results_file()); }

void Run::store_result(const Result& result) const {
  constexpr auto kPatience = std::chrono::seconds(10);
  json added = to_json(result);
  if (!result.checkpoint.empty()) added["checkpoint"] = result.checkpoint;
  // Locks the directory because each write replaces the file.
  const files::Descriptor lock =
      locked(path_, kPatience, results_file().string() + " is being written by another process");
  std::string lines;
  for (const json& line : results()) {
    const bool other_weights = line.value("checkpoint", result.checkpoint) != result.checkpoint;
    if (!other_weights && !same_question(line, added)) lines += line.dump() + "\n";
  }
  files::write_file_durably(results_file(), lines + added.dump() + "\n");
}

}  // namespace ovq::train
