#include "ovq/ops/rows/kernel.h"
#include "ovq/core/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ovq/ops/rows/kernel.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "ovq/ops/gated_mlp/kernel-inl.h"
#include "ovq/ops/norm/kernel-inl.h"
#include "ovq/ops/products/kernel-inl.h"
#include "ovq/ops/products/matvec-inl.h"
#include "ovq/ops/projections/kernel-inl.h"

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
      .unit_backward = unit_backward_entry,
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

#include "ovq/core/dispatch.h"

namespace ovq::kernels::detail {

HWY_EXPORT(row_kernels_of_target);

int64_t head_rows_scratch(const HeadRows& in) { return (7 + 2 * in.taps_count) * in.channels; }

const RowKernels& row_kernels() {
  static const TargetTables<RowKernels> tables([] { return HWY_DYNAMIC_DISPATCH(row_kernels_of_target)(); });
  return tables.selected();
}

}  // namespace ovq::kernels::detail
#endif
