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
#include "ovq/core/parallel.h"

namespace ovq::cli {
namespace {

constexpr int kKeptBlock = 1 << 30;

// Restarts this program with the same arguments. Returns if that fails.
void start_again() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::error_code error;
  // The real path, because /proc/self/exe would become the name of the process.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && !words.empty()) execv(program.c_str(), arguments.data());
}

// OpenBLAS chooses its kernels before main(), so another choice needs a new process.
void choose_blas_kernels(Warnings warnings) {
  const Blas blas = loaded_blas();
  if (const std::string kernels(missing_kernels(blas)); !kernels.empty()) {
    const std::string advice = missing_kernels_text(blas);
    setenv(kKernelsVariable, kernels.c_str(), 1);  // also prevents a second restart
    start_again();
    if (warnings == Warnings::shown) print_warning(advice);
  }
  if (warnings == Warnings::shown && blas.file.find("openblas-openmp") == std::string::npos) {
    print_warning(fmt::format("torch multiplies matrices with {}, which is slow; install Debian's libopenblas0-openmp",
                              blas.file.empty() ? "an unknown BLAS" : blas.file));
  }
}

}  // namespace

void set_up_torch(int threads, Warnings warnings) {
  choose_blas_kernels(warnings);
  // A training step allocates tensors of the same sizes again and again. Their memory is kept instead of being
  // unmapped, mapped and cleared each time.
  mallopt(M_MMAP_THRESHOLD, kKeptBlock);
  mallopt(M_TRIM_THRESHOLD, kKeptBlock);
  kernels::set_threads(threads);
  at::set_num_threads(kernels::max_threads());
}

}  // namespace ovq::cli
