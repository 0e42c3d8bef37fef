// The BLAS that torch uses in this process, and whether OpenBLAS chose the right kernels.
#pragma once

#include <string>
#include <string_view>

namespace ovq {

struct Blas {
  std::string file;     // the shared object behind all symbolic links; empty if none is loaded
  std::string kernels;  // OpenBLAS: the CPU that its kernels were written for, e.g. "Haswell"; else empty
};
// Debian may have several installed; the alternatives system decides which one torch loads.
Blas loaded_blas();

enum class VectorUnit { older, avx2, avx512 };
VectorUnit vector_unit();  // of this CPU

// The kernels that OpenBLAS should have chosen instead of `chosen`; empty if `chosen` is right. On a CPU newer than the
// library it falls back to the oldest kernels, without AVX. With 0.3.21 on an Emerald Rapids, a product of 1024 x 256
// and 256 x 256 reached 30 GFLOP/s on one core with its choice ("Prescott"), 78 with "Haswell", 150 with "SkylakeX".
std::string_view better_kernels(std::string_view chosen, VectorUnit cpu);

// OpenBLAS reads this variable when it is loaded. A value set by the user takes precedence.
inline constexpr const char* kKernelsVariable = "OPENBLAS_CORETYPE";

// The value that the variable should have in this process; empty if nothing needs to change.
std::string_view missing_kernels(const Blas& blas);

// The same as a message for the user.
std::string missing_kernels_text(const Blas& blas);

}  // namespace ovq
