#include "ovq/train/run_directory.h"

#include <fstream>
#include <stdexcept>

#include "ovq/models/files/durable.h"

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

std::vector<json> RunDirectory::read_metrics() const {
  std::vector<json> lines;
  std::ifstream in(metrics_file());
  for (std::string line; std::getline(in, line);) {
    json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) lines.push_back(std::move(parsed));  // a line cut short by a crash is none
  }
  return lines;
}

void RunDirectory::rewind_metrics(int64_t step) const {
  std::string kept;
  for (const json& line : read_metrics()) {
    if (line.value("step", int64_t{0}) <= step) kept += line.dump() + "\n";
  }
  files::write_file_durably(metrics_file(), kept);
}

void RunDirectory::append_metrics(const json& line) const {
  std::ofstream out(metrics_file(), std::ios::app);
  out << line.dump() << "\n" << std::flush;
  if (!out) throw std::runtime_error("cannot write " + metrics_file().string());
}

}  // namespace ovq::train
