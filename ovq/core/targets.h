// Which of Highway's targets are compiled, and which of them run here. Include it before other Highway headers.
#pragma once

#include <cstdint>

// - The kernels use nothing that AVX3_DL adds to AVX3.
// - SVE's vectors have no fixed size, and GCC cannot compile arrays of them, which the kernels need. A machine with SVE
//   runs NEON.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/targets.h"

namespace ovq::kernels::detail {

// One bit each, lower bits for better targets. The baseline that the compiler may use anywhere also runs here, even if
// Highway rejects it: Highway wants AES beside NEON, which some CPUs lack (Raspberry Pi 4) and the kernels do not use.
inline int64_t usable_targets() { return (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS; }

}  // namespace ovq::kernels::detail
