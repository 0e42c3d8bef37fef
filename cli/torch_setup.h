// What every subcommand that computes with torch does first.
#pragma once

namespace ovq::cli {

// Gives torch and the kernels `threads` threads, 0 for all cores (Debian's torch starts with one). Where OpenBLAS does
// not know the CPU and has chosen slow kernels, starts the program anew with better ones (see ovq/base/blas.h): nothing
// may have happened yet that must not happen twice. Warns on stderr if torch's matrix products do not come from
// OpenBLAS with OpenMP.
enum class Warnings { shown, hidden };
void set_up_torch(int threads, Warnings warnings = Warnings::shown);

}  // namespace ovq::cli
