// Common part of the recurrent layers: y = W_o normalised(op(projections of x)), with an op whose state is a matrix per
// head (see ops/recurrence/torch.h) and short convolutions on its inputs. This class has the projections and
// convolutions, their states between calls, packed sequences, and the norm and gate of the output. A layer implements
// `recur`, which prepares the inputs of its op.
#pragma once

#include <utility>
#include <vector>

#include "ovq/nn/mixer.h"
#include "ovq/nn/projection.h"
#include "ovq/nn/rms_norm.h"
#include "ovq/nn/short_convolution.h"
#include "ovq/ops/projections/torch.h"
#include "ovq/ops/recurrence/torch.h"

namespace ovq::nn {

struct RecurrentOptions {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t key_dim = 0;    // per head: rows of the state
  int64_t value_dim = 0;  // per head: what is written and read
  int64_t conv_width = 0;
};

// From the options of a layer that have the same names.
template <class Options>
RecurrentOptions recurrent_options(const Options& options) {
  return {.width = options.width,
          .heads = options.heads,
          .key_dim = options.key_dim,
          .value_dim = options.value_dim,
          .conv_width = options.conv_width};
}

class RecurrentMixer : public Mixer {
 public:
  int64_t state_bytes(int64_t tokens, kernels::StateDtype dtype = kernels::StateDtype::float32) const override;

 protected:
  // `op`: the name in errors.
  RecurrentMixer(const char* op, const RecurrentOptions& options);

  // The inputs of one in.
  struct RecurInputs {
    const Tensor& x;  // [B, T, width]
    const MixerState* state;
    const OptionalTensor& cu_seqlens;
    Tensor before;                                         // the op's state before x; undefined: zeros
    Tensor starts;                                         // first tokens of packed sequences; undefined: not packed
    std::vector<std::pair<const char*, Tensor>>& carried;  // inputs of convolutions for the state behind x, by name
  };
  struct Recurred {
    ops::RecurrenceResult result;  // o [B, T, H, value_dim]
    Tensor gate = {};              // [B, T, H value_dim], before its activation; undefined: none
  };
  virtual Recurred recur(const RecurInputs& in) = 0;

  // o [B, T, H, value_dim] -> [B, T, H value_dim] for the output projection: a norm over each head, then silu(gate).
  virtual Tensor normalised(const Tensor& o, const Tensor& gate);

  // Elements of the op's state for one sequence.
  virtual int64_t state_elements() const;

  // Add the parts. Constructors call these in the order of state dicts and random numbers.
  Projection add_projection(const char* name, int64_t outputs, bool bias = false);
  void add_query_key_value();         // q_proj, k_proj, v_proj
  void add_output(const char* name);  // [B, T, H value_dim] -> [B, T, width]
  void add_query_key_convolutions();  // conv_q, conv_k, each followed by silu
  void add_value_convolution();       // conv_v
  ShortConvolution add_convolution(const char* name, int64_t channels, bool bias = false);
  void add_norm(int64_t size, double eps = 1e-6, int64_t groups = 1);
  StateLayout head_layout(const char* kind) const;

  // ops::projections behind what the state has of the tokens before x. `names`: of each part's inputs in it, null
  // without a convolution.
  std::vector<Tensor> projected(const RecurInputs& in, const ops::ProjectionsInputs& inputs,
                                const std::vector<const char*>& names) const;

  struct Heads {
    Tensor q, k, v;              // q and k [B, T, H, key_dim] of norm one, v [B, T, H, value_dim]
    std::vector<Tensor> others;  // outputs of the other projections, in their order
  };
  Heads query_key_value(const RecurInputs& in, const std::vector<Projection>& others = {});

  Tensor mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) override;

  RMSNorm norm{nullptr};

 private:
  const char* op_;
  RecurrentOptions options_;
  Projection q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, output_{nullptr};
  ShortConvolution conv_q_{nullptr}, conv_k_{nullptr}, conv_v_{nullptr};
  int64_t convolved_channels_ = 0;
};

}  // namespace ovq::nn
