// Where experiment sets and the report's claims are: in ./experiments, beside the installed program, or in the source
// tree that the program was built from.
#pragma once

#include <filesystem>

namespace ovq::cli {

// The first of these directories that exists; `experiments` if none does.
std::filesystem::path experiment_directory();
// report/claims.json in the first of these directories that has it.
std::filesystem::path claims_file();

}  // namespace ovq::cli
