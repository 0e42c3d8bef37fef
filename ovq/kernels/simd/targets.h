// Which of Highway's targets are not compiled. Include it before anything of Highway.
#pragma once

// - The kernels use nothing that AVX3_DL has and AVX3 has not.
// - SVE's vectors have no fixed size, and GCC compiles no arrays of them, which the kernels need. A machine with SVE
//   runs NEON.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
