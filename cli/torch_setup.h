// What every subcommand that computes with torch does first.
#pragma once

namespace ovq::cli {

// Gives torch and the kernels `threads` threads, 0 for all cores (Debian's torch starts with one), and warns on stderr
// if torch's matrix products do not come from OpenBLAS with OpenMP.
void set_up_torch(int threads);

}  // namespace ovq::cli
