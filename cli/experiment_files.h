// Where the sets of experiments and the claims of the report lie: in `experiments` here, beside the installed program, or
// in the sources that the program was built of.
#pragma once

#include <filesystem>

namespace ovq::cli {

// The first of these directories that is there; `experiments` if none is.
std::filesystem::path experiment_directory();

}  // namespace ovq::cli
