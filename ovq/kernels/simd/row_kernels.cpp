#include "ovq/kernels/simd/row_kernels.h"
#include "ovq/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ovq/kernels/simd/row_kernels.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "ovq/kernels/simd/heads-inl.h"
#include "ovq/kernels/simd/matvec-inl.h"
#include "ovq/kernels/simd/products-inl.h"
#include "ovq/kernels/simd/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::detail {
namespace HWY_NAMESPACE {

const RowKernels* row_kernels_of_target() {
  static const RowKernels kernels = {
      .isa = hwy::TargetName(HWY_TARGET),
      .fast_products = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2,
      .pack = pack_entry,
      .product = product_entry,
      .outer_product = outer_product_entry,
      .matvec = matvec_entry,
      .widen = widen_entry,
      .norm = norm_entry,
      .norm_backward = norm_backward_entry,
      .gate = gate_entry,
      .gate_backward = gate_backward_entry,
      .heads = heads_entry,
      .heads_backward = heads_backward_entry,
  };
  return &kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <string_view>
#include <vector>

#include "ovq/kernels/simd/read_kernels.h"

namespace ovq::kernels::detail {
namespace {

HWY_EXPORT(row_kernels_of_target);

// The kernels that this machine can run, best first. Restores Highway's own choice, which the whole process shares.
std::vector<const RowKernels*> usable() {
  std::vector<const RowKernels*> all;
  const int64_t targets = usable_targets();
  for (int bit = 0; bit < 63; ++bit) {
    if ((targets >> bit & 1) == 0) continue;
    hwy::SetSupportedTargetsForTest(int64_t{1} << bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    all.push_back(HWY_DYNAMIC_DISPATCH(row_kernels_of_target)());
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return all;
}

}  // namespace

int64_t head_rows_scratch(const HeadRows& in) { return (7 + 2 * in.taps_count) * in.channels; }

const RowKernels& row_kernels() {
  const std::string_view wanted = read_kernels().isa;  // called first because both look-ups use Highway's choice
  static const std::vector<const RowKernels*> all = usable();
  for (const RowKernels* kernels : all) {
    if (wanted == kernels->isa) return *kernels;
  }
  return *all.back();  // the baseline
}

}  // namespace ovq::kernels::detail
#endif
