#include "ovq/ops/rows/torch.h"

#include "ovq/ops/rows/kernel.h"
#include "ovq/ops/torch/backend.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::ops {
namespace {

using at::Tensor;

constexpr int64_t kNormBlock = 32;  // rows a thread takes at a time, and that a gradient of the weight is summed over

kernels::detail::NormRows block_of(const Tensor& x, const Tensor& weight, double eps, int64_t begin, int64_t end) {
  const int64_t width = x.size(-1);
  return {.x = x.data_ptr<float>() + begin * width,
          .weight = weight.data_ptr<float>(),
          .rows = end - begin,
          .width = width,
          .eps = static_cast<float>(eps)};
}

}  // namespace

bool has_row_kernels(at::TensorList tensors) {
  if (autocast_on_cpu() || resolved(Backend::automatic) == Backend::composed) return false;
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor& x) { return !x.defined() || (x.is_cpu() && x.scalar_type() == at::kFloat); });
}

NormedRows norm_rows(const Tensor& x, const Tensor& weight, double eps) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const NormedRows result{at::empty(x.sizes(), x.options()), at::empty({rows}, x.options())};
  float *const y = result.y.data_ptr<float>(), *const r = result.r.data_ptr<float>();
  const auto& kernels = kernels::detail::row_kernels();
  parallel_blocks(rows, kNormBlock, width, [&](int64_t begin, int64_t end) {
    kernels.norm(block_of(x, weight, eps, begin, end), y + begin * width, r + begin);
  });
  return result;
}

NormGradients norm_rows_backward(const Tensor& d_y, const Tensor& x, const Tensor& weight, const Tensor& r,
                                 const Tensor& add) {
  const int64_t width = x.size(-1), rows = r.numel();
  const Tensor d_x = at::empty(x.sizes(), x.options());
  const Tensor d_weight = at::empty({(rows + kNormBlock - 1) / kNormBlock, width}, x.options());
  const auto& kernels = kernels::detail::row_kernels();
  parallel_blocks(rows, kNormBlock, 2 * width, [&](int64_t begin, int64_t end) {
    kernels.norm_backward(block_of(x, weight, 0, begin, end),
                          {.d_y = d_y.data_ptr<float>() + begin * width,
                           .r = r.data_ptr<float>() + begin,
                           .add = add.defined() ? add.data_ptr<float>() + begin * width : nullptr,
                           .d_x = d_x.data_ptr<float>() + begin * width,
                           .d_weight = d_weight.data_ptr<float>() + begin / kNormBlock * width});
  });
  return {d_x, d_weight.sum(0)};
}

}  // namespace ovq::ops
