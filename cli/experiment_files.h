// Where the sets of experiments and the claims of the report are: in `experiments` here, beside the installed program, or
// in the sources from which the program was built.
#pragma once

#include <filesystem>

namespace ovq::cli {

// The first of these directories that exists; `experiments` if none does.
std::filesystem::path experiment_directory();
// report/claims.json in the first of them that has it.
std::filesystem::path claims_file();

}  // namespace ovq::cli
