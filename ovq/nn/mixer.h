// The common interface of sequence mixers, for training, prefill in pieces and decoding.
#pragma once

#include <map>
#include <sstream>
#include <string>

#include "ovq/base/fields.h"
#include "ovq/ops/ovq_attention/torch_state.h"
#include "ovq/ops/torch/torch.h"

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

  Tensor tensor(const char* name) const;  // undefined: there is none

  int64_t nbytes() const;       // memory held, room to grow included
  int64_t used_bytes() const;   // without it: what a token reads
  MixerState clone() const;     // independent, outside of the autograd graph
  MixerState snapshot() const;  // the same, but the dictionary is shared until one of the two is written to
};

// What states depend on, as text: "gdn heads=2 key_dim=128 ..."
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

  // forward or step of a caller who has called check_state, for all layers before the first moves on.
  Tensor mix_checked(const Tensor& x, MixerState& state);

  // std::invalid_argument unless `state` is one of this mixer's, for so many sequences, or of an empty
  // context.
  void check_state(const MixerState& state, int64_t batch) const;

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
  // The one implementation behind the three above. state: null when not asked for. Never both a state and cu_seqlens.
  // Works with gradients on or off; tensors in `state` are replaced, not written to, while gradients are on. All of
  // them move on together, once nothing can throw any more: what is written in place, behind a cache or over a
  // recurrence's state, is so by ops that throw only before they write.
  virtual Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) = 0;

  // Called by the constructor. States with another layout are refused.
  void set_layout(const StateLayout& layout) { layout_ = layout.text(); }

 private:
  std::string layout_;
};

}  // namespace ovq::nn
