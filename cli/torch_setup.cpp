#include "cli/torch_setup.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>

#include <cstdio>
#include <string>

#include "bench/machine.h"
#include "ovq/kernels/parallel.h"

namespace ovq::cli {
namespace {

constexpr int kKeptBlock = 1 << 30;

}  // namespace

void set_up_torch(int threads) {
  // Tensors of a training step come and go in the same sizes: memory stays with the process instead of being unmapped,
  // mapped and cleared again.
  mallopt(M_MMAP_THRESHOLD, kKeptBlock);
  mallopt(M_TRIM_THRESHOLD, kKeptBlock);
  kernels::set_threads(threads);
  at::set_num_threads(kernels::max_threads());
  const std::string blas = bench::loaded_blas();
  if (blas.find("openblas-openmp") == std::string::npos) {
    fmt::print(stderr, "ovq: torch multiplies matrices with {}, which is slow; Debian's libopenblas0-openmp is not\n",
               blas.empty() ? "an unknown BLAS" : blas);
  }
}

}  // namespace ovq::cli
