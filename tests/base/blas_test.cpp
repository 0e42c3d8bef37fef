#include "ovq/base/blas.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace ovq {
namespace {

TEST(Blas, KernelsOfAnUnknownCpuAreReplacedByWhatItHas) {
  for (const char* chosen : {"Prescott", "Barcelona"}) {
    EXPECT_EQ(better_kernels(chosen, VectorUnit::avx512), "SkylakeX") << chosen;
    EXPECT_EQ(better_kernels(chosen, VectorUnit::avx2), "Haswell") << chosen;
    EXPECT_EQ(better_kernels(chosen, VectorUnit::older), "") << chosen << " may be right";
  }
}

TEST(Blas, KernelsThatWereChosenForTheCpuStay) {
  for (const char* chosen : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids", "Sandybridge", ""}) {
    for (const VectorUnit cpu : {VectorUnit::older, VectorUnit::avx2, VectorUnit::avx512})
      EXPECT_EQ(better_kernels(chosen, cpu), "") << chosen;
  }
}

TEST(Blas, WhoeverSetTheVariableHasDecided) {
  const char* before = std::getenv(kKernelsVariable);
  const std::string kept = before == nullptr ? "" : before;
  unsetenv(kKernelsVariable);
  EXPECT_EQ(missing_kernels({.file = "libblas.so.3", .kernels = "Prescott"}),
            better_kernels("Prescott", vector_unit()));
  EXPECT_EQ(missing_kernels({.file = "libmkl_rt.so", .kernels = ""}), "");
  if (vector_unit() == VectorUnit::avx512) {
    EXPECT_EQ(missing_kernels_text({.file = "libblas.so.3", .kernels = "Prescott"}),
              "OpenBLAS does not recognise this CPU and uses its kernels for Prescott, which are slow; "
              "set OPENBLAS_CORETYPE=SkylakeX in the environment");
  }
  setenv(kKernelsVariable, "Prescott", 1);
  EXPECT_EQ(missing_kernels({.file = "libblas.so.3", .kernels = "Prescott"}), "");
  EXPECT_EQ(missing_kernels_text({.file = "libblas.so.3", .kernels = "Prescott"}), "");
  if (before == nullptr)
    unsetenv(kKernelsVariable);
  else
    setenv(kKernelsVariable, kept.c_str(), 1);
}

TEST(Blas, TheVectorUnitIsWhatTheSystemSays) {
#ifdef __x86_64__
  std::ifstream info("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(info), {}};
  const auto has = [&](const std::string& flag) { return (text + " ").find(" " + flag + " ") != std::string::npos; };
  if (!has("avx2")) GTEST_SKIP() << "no /proc/cpuinfo, or an old machine";
  EXPECT_EQ(vector_unit() == VectorUnit::avx512, has("avx512f") && has("avx512bw") && has("avx512vl"));
  EXPECT_NE(vector_unit(), VectorUnit::older);
#else
  EXPECT_EQ(vector_unit(), VectorUnit::older);  // whatever CPU an emulator runs on
#endif
}

TEST(Blas, AProgramWithoutOneHasNone) {
  EXPECT_EQ(loaded_blas().file, "");
  EXPECT_EQ(loaded_blas().kernels, "");
}

}  // namespace
}  // namespace ovq
