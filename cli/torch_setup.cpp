#include "cli/torch_setup.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "ovq/base/blas.h"
#include "ovq/kernels/parallel.h"

namespace ovq::cli {
namespace {

constexpr int kKeptBlock = 1 << 30;

// Starts this program again, with the same arguments. Returns if that is not possible.
void start_again() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::error_code error;
  // By its path and not as /proc/self/exe, which would become the name of the process.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && !words.empty()) execv(program.c_str(), arguments.data());
}

// OpenBLAS has chosen its kernels before this program runs its first line: another choice needs a new process.
void choose_blas_kernels(Warnings warnings) {
  const Blas blas = loaded_blas();
  if (const std::string kernels(missing_kernels(blas)); !kernels.empty()) {
    const std::string advice = missing_kernels_text(blas);
    setenv(kKernelsVariable, kernels.c_str(), 1);  // and so there is no second time
    start_again();
    if (warnings == Warnings::shown) print_warning(advice);
  }
  if (warnings == Warnings::shown && blas.file.find("openblas-openmp") == std::string::npos) {
    print_warning(fmt::format("torch multiplies matrices with {}, which is slow; Debian's libopenblas0-openmp is not",
                              blas.file.empty() ? "an unknown BLAS" : blas.file));
  }
}

}  // namespace

void set_up_torch(int threads, Warnings warnings) {
  choose_blas_kernels(warnings);
  // Tensors of a training step come and go in the same sizes: memory stays with the process instead of being unmapped,
  // mapped and cleared again.
  mallopt(M_MMAP_THRESHOLD, kKeptBlock);
  mallopt(M_TRIM_THRESHOLD, kKeptBlock);
  kernels::set_threads(threads);
  at::set_num_threads(kernels::max_threads());
}

}  // namespace ovq::cli
