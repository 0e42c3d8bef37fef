#include "ovq/kernels/simd/recurrence_kernels.h"
#include "ovq/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ovq/kernels/simd/recurrence_kernels.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "ovq/kernels/simd/gated_delta_rule-inl.h"
#include "ovq/kernels/simd/linear_attention-inl.h"
#include "ovq/kernels/simd/mesa-inl.h"
#include "ovq/kernels/simd/short_convolution-inl.h"

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

const RecurrenceKernels& recurrence_kernels_of_target() {
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
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels::recurrence {

HWY_EXPORT(recurrence_kernels_of_target);

// The kernels of a target, or of the best one below it that is compiled here. Restores Highway's own choice, which the
// whole process shares.
const RecurrenceKernels& recurrence_kernels_of(int64_t target) {
  const int64_t usable = kernels::detail::usable_targets() & ~(target - 1);  // better targets are lower bits
  hwy::SetSupportedTargetsForTest(usable & -usable);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  const RecurrenceKernels& kernels = HWY_DYNAMIC_DISPATCH(recurrence_kernels_of_target)();
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return kernels;
}

}  // namespace ovq::kernels::recurrence
#endif
