// The state of OVQ-attention as a torch object: the kernels' own, with tensors that look into it. A state given to an
// op is never changed; `step` changes it in place.
#pragma once

#include <ATen/ATen.h>
#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <vector>

#include "ovq/ops/ovq_attention/state.h"

namespace ovq::ops {

// What gradients flow through: [B, Hkv, n, dk], [B, Hkv, n, dv], [B, Hkv, pending, dk], [B, Hkv, pending, dv]; with
// weights also [B, Hkv, n] and [B, Hkv, pending], with value_norms [B, Hkv, n]; undefined without.
struct StateTensors {
  at::Tensor keys, values, pending_keys, pending_values;
  at::Tensor counts, pending_weights;
  at::Tensor shrinkage;

  static size_t count(const kernels::OvqOptions& options) {
    return 4 + (options.weighted ? 2 : 0) + (options.value_norms ? 1 : 0);
  }
  std::vector<at::Tensor> list() const;  // those that are defined
  static StateTensors from(at::TensorList list, const kernels::OvqOptions& options);
};

// Tensors that look into a state and keep it alive.
StateTensors views_of(const std::shared_ptr<kernels::OvqState>& state);

class State : public torch::CustomClassHolder {
 public:
  // `tracked`, where defined, are outputs of an autograd node that look into the state.
  State(std::shared_ptr<kernels::OvqState> kernel, StateTensors tracked);

  const std::shared_ptr<kernels::OvqState>& kernel() const { return kernel_; }

  const kernels::OvqOptions& options() const { return kernel_->options(); }
  const kernels::OvqShape& shape() const { return kernel_->shape(); }
  int64_t size() const { return kernel_->size(); }  // centroids
  int64_t position() const { return kernel_->position(); }
  int64_t nbytes() const { return kernel_->nbytes(); }
  int64_t used_bytes() const;    // of centroids, the logarithms of their counts and pending tokens: what a token reads
  at::ScalarType dtype() const;  // of keys and values: float32 or bfloat16
  StateTensors tensors() const { return tracked_.keys.defined() ? tracked_ : views_of(kernel_); }
  // [B, Hkv, n] int64, a copy; with weights the sums of the tokens' weights, which gradients flow through.
  at::Tensor counts() const;
  at::Tensor pending_weights() const { return tensors().pending_weights; }  // [B, Hkv, pending]; undefined without
  at::Tensor shrinkage() const { return tensors().shrinkage; }  // [B, Hkv, n] with value_norms; undefined without

  // The kernels' state for a change in place: nobody else looks into it.
  kernels::OvqState& own_kernel();

  // Both are outside of the autograd graph: clone with memory of its own, detach sharing it until a step.
  c10::intrusive_ptr<State> clone() const;
  c10::intrusive_ptr<State> detach() const;
  // A copy whose centroids are stored as `dtype`, rounded to nearest or widened exactly; outside of the graph too.
  c10::intrusive_ptr<State> to(kernels::StateDtype dtype) const;
  void save(const std::string& path) const;
  static c10::intrusive_ptr<State> load(const std::string& path);
  at::Tensor to_bytes() const;  // uint8
  static c10::intrusive_ptr<State> from_bytes(const at::Tensor& bytes);

 private:
  std::shared_ptr<kernels::OvqState> kernel_;
  StateTensors tracked_;
};

}  // namespace ovq::ops
