#include "cli/experiment_files.h"

#include <system_error>

namespace ovq::cli {

namespace fs = std::filesystem;

namespace {

// The first directory that has `name`: the working directory, beside the installed program, the sources it was built
// from.
fs::path first_with(const fs::path& name) {
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  for (const fs::path& directory :
       {fs::path("experiments"), program.parent_path().parent_path() / OVQ_SHARED_FILES / "experiments",
        fs::path(OVQ_SOURCE_EXPERIMENTS)}) {
    if (fs::exists(directory / name, none)) return directory / name;
  }
  return "experiments" / name;
}

}  // namespace

fs::path experiment_directory() { return first_with(""); }
fs::path claims_file() { return first_with(fs::path("report") / "claims.json"); }

}  // namespace ovq::cli
