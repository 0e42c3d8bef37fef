#include "ovq/ops/recurrence/kernel.h"
#include "ovq/core/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ovq/ops/recurrence/kernel.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "ovq/ops/gated_delta_rule/kernel-inl.h"
#include "ovq/ops/linear_attention/kernel-inl.h"
#include "ovq/ops/mesa/kernel-inl.h"
#include "ovq/ops/short_convolution/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

int64_t linear_scratch(const LinearCall& call, int64_t heads, bool backward) {
  return LinearScratch(call, heads, nullptr, backward).size;
}
int64_t delta_scratch(const DeltaCall& call, int64_t heads, bool backward) {
  return DeltaScratch(call, heads, nullptr, backward).size;
}
int64_t mesa_scratch(const MesaCall& call, bool backward) { return MesaScratch(call, nullptr, backward).size; }
int64_t convolution_scratch(const ConvolutionCall& call) { return ConvolutionScratch(call, nullptr).size; }

const RecurrenceKernels* recurrence_kernels_of_target() {
  static const RecurrenceKernels kernels = {
      .isa = hwy::TargetName(HWY_TARGET),
      .linear_scratch = linear_scratch,
      .delta_scratch = delta_scratch,
      .mesa_scratch = mesa_scratch,
      .convolution_scratch = convolution_scratch,
      .linear_forward = linear_forward,
      .linear_backward = linear_backward,
      .delta_forward = delta_forward,
      .delta_backward = delta_backward,
      .mesa_forward = mesa_forward,
      .mesa_backward = mesa_backward,
      .convolution_forward = convolution_forward,
      .convolution_backward = convolution_backward,
  };
  return &kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "ovq/core/dispatch.h"

namespace ovq::kernels::recurrence {

HWY_EXPORT(recurrence_kernels_of_target);

const RecurrenceKernels& recurrence_kernels() {
  static const kernels::detail::TargetTables<RecurrenceKernels> tables(
      [] { return HWY_DYNAMIC_DISPATCH(recurrence_kernels_of_target)(); });
  return tables.selected();
}

}  // namespace ovq::kernels::recurrence
#endif
