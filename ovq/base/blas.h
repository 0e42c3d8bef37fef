// The BLAS that torch multiplies matrices with in this process, and whether OpenBLAS took the right kernels in it.
#pragma once

#include <string>
#include <string_view>

namespace ovq {

struct Blas {
  std::string file;     // the shared object behind all links; empty if none is loaded
  std::string kernels;  // OpenBLAS: the CPU that its kernels were written for, e.g. "Haswell"; else empty
};
// Debian has several, and torch takes what the alternatives say.
Blas loaded_blas();

enum class VectorUnit { older, avx2, avx512 };
VectorUnit vector_unit();  // of this CPU

// The kernels that OpenBLAS should have taken in place of `chosen`; empty: those are right. A CPU that is newer than
// the library gets the oldest kernels there are, without AVX. With 0.3.21 on an Emerald Rapids, a product of 1024 x 256
// and 256 x 256 reached 30 GFLOP/s on one core with what it chose ("Prescott"), 78 with "Haswell", 150 with "SkylakeX".
std::string_view better_kernels(std::string_view chosen, VectorUnit cpu);

// OpenBLAS reads this variable when it is loaded. Who has set it has decided.
inline constexpr const char* kKernelsVariable = "OPENBLAS_CORETYPE";

// What the variable should say in this process and does not; empty: nothing.
std::string_view missing_kernels(const Blas& blas);

// The same as a sentence for the user.
std::string missing_kernels_text(const Blas& blas);

}  // namespace ovq
