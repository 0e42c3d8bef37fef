#include "ovq/train/run_directory.h"

#include <fstream>
#include <stdexcept>

#include "ovq/base/files/durable.h"
#include "ovq/base/json_lines.h"

namespace ovq::train {
namespace {

constexpr const char* kRunFile = "run.json";

}  // namespace

RunDirectory RunDirectory::create(const std::filesystem::path& path, const RunOptions& options) {
  if (std::filesystem::exists(path / kRunFile)) {
    throw std::runtime_error(path.string() + " holds a run already; go on with --resume " + path.string() +
                             " or choose another --out");
  }
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw std::runtime_error("cannot create " + path.string() + ": " + error.message());
  files::write_file_durably(path / kRunFile, to_json(options).dump(2) + "\n");
  return {path, options};
}

RunDirectory RunDirectory::open(const std::filesystem::path& path) {
  std::ifstream in(path / kRunFile);
  if (!in) throw std::runtime_error(path.string() + " is not a run: cannot open " + (path / kRunFile).string());
  try {
    return {path, run_options_from_json(json::parse(in))};
  } catch (const std::exception& error) {
    throw std::runtime_error((path / kRunFile).string() + ": " + error.what());
  }
}

std::vector<json> RunDirectory::read_metrics() const { return read_json_lines(metrics_file()); }

void RunDirectory::rewind_metrics(int64_t step) const {
  std::string kept;
  for (const json& line : read_metrics()) {
    if (line.value("step", int64_t{0}) <= step) kept += line.dump() + "\n";
  }
  files::write_file_durably(metrics_file(), kept);
}

void RunDirectory::append_metrics(const json& line) const { append_json_line(metrics_file(), line); }

}  // namespace ovq::train
