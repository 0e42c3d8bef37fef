// Which of Highway's targets are compiled, and which of those run here. Include it before the rest of Highway.
#pragma once

#include <cstdint>

// - The kernels use nothing that AVX3_DL has and AVX3 has not.
// - SVE's vectors have no fixed size, and GCC compiles no arrays of them, which the kernels need. A machine with SVE
//   runs NEON.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/targets.h"

namespace ovq::kernels::detail {

// One bit each, better ones lower. What the compiler may use anywhere runs here too, even if Highway does not say so:
// it wants AES beside NEON, which some CPUs do not have (Raspberry Pi 4) and the kernels do not use.
inline int64_t usable_targets() { return (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS; }

}  // namespace ovq::kernels::detail
