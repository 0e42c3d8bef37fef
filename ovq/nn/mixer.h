// The common interface of sequence mixers, for training, prefill in pieces and decoding.
#pragma once

#include <c10/util/SmallVector.h>

#include <map>
#include <sstream>
#include <string>

#include "ovq/base/fields.h"
#include "ovq/ops/ovq_state.h"
#include "ovq/ops/torch.h"

namespace ovq::nn {

using at::Tensor;
using OptionalTensor = c10::optional<Tensor>;

// The memory of one mixer between calls, for a batch of sequences. A new state is an empty context. Decoding writes
// into it; copies are made only on demand.
struct MixerState {
  MixerState() = default;
  MixerState(MixerState&&) = default;
  MixerState& operator=(MixerState&&) = default;

  int64_t position = 0;  // tokens seen
  // Storage of cached keys and values and of the centroids of dictionaries; everything else is float32. Existing
  // content is converted when the next token is read.
  kernels::StateDtype dtype = kernels::StateDtype::float32;
  std::map<std::string, Tensor> tensors;  // by name, [B, ...]
  c10::intrusive_ptr<ops::State> ovq;     // the dictionary of OVQ-attention, if the mixer has one
  std::string layout;                     // of the mixer that made it; empty: new, or from a file without a layout

  int64_t nbytes() const;       // memory held, including room to grow
  int64_t used_bytes() const;   // without room to grow: the bytes that a token reads
  MixerState clone() const;     // independent, outside of the autograd graph
  MixerState snapshot() const;  // the same, but the dictionary is shared until one of the two is written to
};

// Restores position and tensors of a state (null: none) unless `keep` is called: for calls that throw halfway. Ops that
// write in place, behind a cache or over a recurrence's state, throw only before they write. Runs for every layer and
// token, so it remembers where the tensors are instead of copying the map.
class StateRollback {
 public:
  explicit StateRollback(MixerState* state) : state_(state) {
    if (state == nullptr) return;
    position_ = state->position;
    for (auto& [name, tensor] : state->tensors) before_.push_back({&tensor, tensor, -1});
  }
  ~StateRollback() {
    if (state_ == nullptr) return;
    state_->position = position_;
    std::erase_if(state_->tensors, [&](const auto& item) { return find(&item.second) == nullptr; });
    for (const Before& one : before_) *one.at = one.length < 0 ? one.tensor : one.at->narrow(1, 0, one.length);
  }
  StateRollback(const StateRollback&) = delete;
  StateRollback& operator=(const StateRollback&) = delete;
  void keep() { state_ = nullptr; }
  // A tensor that only grows, along dimension 1: its length is enough, and keeps no second copy of it in memory.
  void grows(const std::string& name) {
    if (state_ == nullptr) return;
    const auto at = state_->tensors.find(name);
    if (at == state_->tensors.end() || !at->second.defined()) return;
    Before& one = *find(&at->second);
    one.length = one.tensor.size(1);
    one.tensor.reset();
  }

 private:
  struct Before {
    Tensor* at;      // in the map, whose elements do not move
    Tensor tensor;   // undefined if only its length is known
    int64_t length;  // -1: unknown
  };
  Before* find(const Tensor* at) {
    for (Before& one : before_) {
      if (one.at == at) return &one;
    }
    return nullptr;
  }

  MixerState* state_;
  int64_t position_ = 0;
  c10::SmallVector<Before, 8> before_;  // no mixer has more tensors
};

// The options that states depend on, as text: "gdn heads=2 key_dim=128 ..."
class StateLayout {
 public:
  explicit StateLayout(const char* kind) { text_ << kind; }
  template <class T>
  StateLayout& add(std::string_view name, const T& value) {
    text_ << ' ' << name << '=';
    if constexpr (std::is_enum_v<T>) {
      text_ << name_of(value);
    } else if constexpr (is_optional<T>) {
      text_ << value.value_or(0);
    } else {
      text_ << value;
    }
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

inline at::ScalarType torch_dtype(kernels::StateDtype dtype) {
  return dtype == kernels::StateDtype::bfloat16 ? at::kBFloat16 : at::kFloat;
}

class Mixer : public torch::nn::Module {
 public:
  // x [B, T, width] -> y [B, T, width]. With cu_seqlens [sequences + 1], B is 1 and sequences are packed along time:
  // chunks, positions, shifts, convolutions and states restart at each of them.
  Tensor forward(const Tensor& x, const OptionalTensor& cu_seqlens = {});

  // The same, starting from `state`, which becomes the state after x. Differentiable through both.
  Tensor forward(const Tensor& x, MixerState& state);

  // Decodes, mostly with T = 1: updates `state`, in place where that saves memory traffic. No autograd. As in forward,
  // an error leaves the state unchanged, except an error of the output projection, which comes last: the state is then
  // that after x.
  Tensor step(const Tensor& x, MixerState& state);

  // std::invalid_argument unless `state` is empty or belongs to this mixer and to `batch` sequences.
  void check_state(const MixerState& state, int64_t batch) const;
  // forward for callers that have already checked x and the states of all mixers.
  Tensor forward_checked(const Tensor& x, MixerState& state);

  // Bytes of the state of one sequence after a pass over `tokens` tokens without gradients. After decoding, a state may
  // have up to a quarter more room to grow.
  virtual int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const = 0;
  // Bytes of the same state in a file, without room to grow.
  virtual int64_t saved_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const {
    return state_bytes(tokens, dtype);
  }

  // A training step extends from begin_step to the next begin_step or to end_step and contains any number of forwards
  // and backwards. Parameters that are not learned by gradients are updated at its end, from all of its forwards
  // together. Without begin_step, every training forward is a step of its own. `seed` is that of this layer and step;
  // all noise is a function of it and the forward's input.
  virtual void begin_step(int64_t /*step*/, uint64_t /*seed*/) {}
  virtual void end_step() {}
  // Called instead of end_step to discard the forwards of the step.
  virtual void drop_step() {}
  // Statistics of the step's forwards. With several ranks, sum them over all ranks in place before begin_step or
  // end_step.
  virtual std::vector<Tensor> step_statistics(int64_t /*rank*/, int64_t /*ranks*/) { return {}; }
  // Whether a training forward would now be a step of its own.
  virtual bool begins_own_step() const { return false; }

  // The additional loss of the last training forward; undefined: none.
  virtual Tensor auxiliary_loss() const { return {}; }

 protected:
  // Implements forward and step. `state` is null without a state; it is never given together with cu_seqlens. Works
  // with and without gradients; with gradients, tensors in `state` are replaced, not written to.
  virtual Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) = 0;

  // Called by the constructor. States with another layout are refused.
  void set_layout(const StateLayout& layout) { layout_ = layout.text(); }

 private:
  std::string layout_;
};

}  // namespace ovq::nn
