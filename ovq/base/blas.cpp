#include "ovq/base/blas.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

namespace ovq {
namespace {

// The first loaded object that is named like a BLAS, as the loader knows it.
std::string blas_object() {
  std::string found;
  const auto look = [](dl_phdr_info* info, size_t, void* result) {
    const std::string name = std::filesystem::path(info->dlpi_name).filename();
    for (const char* blas : {"libblas", "libopenblas", "libmkl_", "libblis", "libatlas", "libflexiblas"}) {
      if (!name.starts_with(blas)) continue;
      *static_cast<std::string*>(result) = info->dlpi_name;
      return 1;
    }
    return 0;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

std::string openblas_kernels(const std::string& object) {
  void* library = dlopen(object.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  // Also where `object` only passes its calls on to OpenBLAS: what it needs is searched too.
  const auto name = reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_corename"));
  const std::string kernels = name == nullptr ? "" : name();
  dlclose(library);
  return kernels;
}

}  // namespace

Blas loaded_blas() {
  const std::string object = blas_object();
  if (object.empty()) return {};
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(object, error);
  return {.file = error ? object : file.string(), .kernels = openblas_kernels(object)};
}

VectorUnit vector_unit() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vl"))
    return VectorUnit::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VectorUnit::avx2;
#endif
  return VectorUnit::older;
}

std::string_view better_kernels(std::string_view chosen, VectorUnit cpu) {
  // What OpenBLAS takes for an x86-64 that it does not know: of Intel or of anybody, of AMD.
  constexpr std::array<std::string_view, 2> kForUnknown = {"Prescott", "Barcelona"};
  if (std::find(kForUnknown.begin(), kForUnknown.end(), chosen) == kForUnknown.end()) return {};
  switch (cpu) {
    case VectorUnit::older:
      return {};
    case VectorUnit::avx2:
      return "Haswell";
    case VectorUnit::avx512:
      return "SkylakeX";
  }
  return {};
}

std::string_view missing_kernels(const Blas& blas) {
  if (std::getenv(kKernelsVariable) != nullptr) return {};
  return better_kernels(blas.kernels, vector_unit());
}

std::string missing_kernels_text(const Blas& blas) {
  const std::string kernels(missing_kernels(blas));
  if (kernels.empty()) return {};
  return "OpenBLAS does not know this CPU and multiplies matrices with its kernels for " + blas.kernels +
         ", which is slow; " + kKernelsVariable + "=" + kernels + " in the environment makes it faster";
}

}  // namespace ovq
