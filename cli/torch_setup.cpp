#include "cli/torch_setup.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "bench/machine.h"
#include "ovq/kernels/parallel.h"

namespace ovq::cli {

void set_up_torch(int threads) {
  kernels::set_threads(threads);
  at::set_num_threads(kernels::max_threads());
  const std::string blas = bench::loaded_blas();
  if (blas.find("openblas-openmp") == std::string::npos) {
    fmt::print(stderr, "ovq: torch multiplies matrices with {}, which is slow; Debian's libopenblas0-openmp is not\n",
               blas.empty() ? "an unknown BLAS" : blas);
  }
}

}  // namespace ovq::cli
