// Context parallelism for OVQ-attention, a prototype. Rank r owns piece r of every sequence: it receives the state from
// rank r - 1, processes its piece and sends its state to rank r + 1. Backward sends the gradient of the state the other
// way. The message size is that of the state, whatever the length of the piece.
//
// It composes like any op: backward of a loss on every rank gives each rank the gradients of its own piece. Parameters
// that the ranks share, such as weights, get the sum over ranks. A model with several layers or micro-batches forms a
// pipeline: a rank starts a layer when the previous rank has finished it.
#pragma once

#include <memory>
#include <vector>

#include "ovq/distributed/process_group.h"
#include "ovq/ops/ovq_attention/options.h"

namespace ovq::distributed {

class ContextParallel {
 public:
  explicit ContextParallel(std::shared_ptr<ProcessGroup> group);
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;
  ~ContextParallel();

  // As ops::ovq_attention on the whole sequence, where q, k and v [B, T of this rank, heads, dim] hold this rank's
  // piece. All ranks must make the same calls in the same order. Only for float32 on the CPU.
  at::Tensor ovq_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                           const kernels::OvqOptions& options);

  // Call after backward: waits until all messages have arrived.
  void finish();

  int64_t bytes_sent() const;  // so far, by this rank

  struct Link;  // shared with the backward functions

 private:
  c10::intrusive_ptr<Link> link_;
};

}  // namespace ovq::distributed
