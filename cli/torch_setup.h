// Setup for every subcommand that computes with torch.
#pragma once

namespace ovq::cli {

// Gives torch and the kernels `threads` threads, 0 for all cores (Debian's torch starts with one). If OpenBLAS does not
// recognise the CPU and has chosen slow kernels, restarts the program with better ones (see ovq/base/blas.h); so call
// it before any action that must not happen twice. Warns on stderr if torch's matrix products do not come from OpenBLAS
// with OpenMP.
enum class Warnings { shown, hidden };
void set_up_torch(int threads, Warnings warnings = Warnings::shown);

}  // namespace ovq::cli
