// Where experiment sets and the report's claims are: in ./experiments, beside the installed program, or in the source
// tree that the program was built from.
#pragma once

#include <filesystem>

namespace ovq::cli {

// The first of these directories that exists; `experiments` if none does.
std::filesystem::path experiment_directory();

}  // namespace ovq::cli
