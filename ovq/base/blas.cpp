#include "ovq/base/blas.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

namespace ovq {
namespace {

// The first loaded shared object whose name is that of a BLAS.
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
  // dlsym also searches the dependencies of `object`, which may only forward its calls to OpenBLAS.
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
  // OpenBLAS's fallbacks for an unknown x86-64 CPU: Intel and others, AMD.
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
  return "OpenBLAS does not recognise this CPU and uses its kernels for " + blas.kernels + ", which are slow; set " +
         kKernelsVariable + "=" + kernels + " in the environment";
}

}  // namespace ovq
