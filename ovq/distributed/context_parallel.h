// Context parallelism for OVQ-attention, a prototype: rank r owns piece r of every sequence, reads it with the state
// that rank r - 1 hands on, and hands its own on to rank r + 1. Backward runs the other way and hands on the gradient
// of the state. What a layer sends is its state, whatever the length of the piece.
//
// It is an op among others: the backward of a loss on every rank gives each the gradients of its own piece, and what
// the ranks share, such as weights, has the sum over ranks as its gradient. A model of several layers, or of several
// micro-batches, is a pipeline without further ado: a rank begins a layer when the rank before has ended that layer.
#pragma once

#include <memory>
#include <vector>

#include "ovq/distributed/process_group.h"
#include "ovq/kernels/ovq_options.h"

namespace ovq::distributed {

class ContextParallel {
 public:
  explicit ContextParallel(std::shared_ptr<ProcessGroup> group);
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;
  ~ContextParallel();

  // As ops::ovq_attention on the whole sequence, of which q, k and v [B, T of this rank, heads, dim] are this rank's
  // piece. All ranks call it in the same order. For float32 on the CPU.
  at::Tensor ovq_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                           const kernels::OvqOptions& options);

  // After backward: until all that was sent has arrived.
  void finish();

  int64_t bytes_sent() const;  // so far, by this rank

  struct Link;  // what the ops' backwards use

 private:
  c10::intrusive_ptr<Link> link_;
};

}  // namespace ovq::distributed
