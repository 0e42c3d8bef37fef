// Mamba-2 (arXiv 2405.21060):
//   [z | xBC | dt] = W_in u;  [x | B | C] = silu(conv(xBC) + bias)
//   y = ssd(x, softplus(dt + dt_bias), -exp(A_log), B, C, D);  output W_out RMSNorm(y . silu(z))
// with the norm over each group's channels, as in the official layer.
#pragma once

#include "ovq/base/fields.h"
#include "ovq/nn/recurrent_mixer.h"

namespace ovq::nn {

struct Mamba2Options {
  int64_t width = 0;
  int64_t heads = 0;  // 0: expand * width / head_dim
  int64_t head_dim = 64;
  int64_t expand = 1;  // heads * head_dim / width
  int64_t state = 64;  // per channel
  int64_t groups = 1;  // of heads that share B, C and the norm
  int64_t conv_width = 4;
};

template <class Fields>
void list_fields(Fields& field, Mamba2Options& o) {
  field("heads", o.heads, "heads", or_zero(at_least(1), "expand * width / head_dim"));
  field("head_dim", o.head_dim, "channels per head", at_least(1));
  field("expand", o.expand, "channels of all heads together, in multiples of the width", at_least(1));
  field("state", o.state, "numbers per channel", at_least(1));
  field("groups", o.groups, "groups of heads that share B, C and the norm", at_least(1));
  field("conv_width", o.conv_width, "taps of the short convolution", at_least(1));
}

constexpr auto retired_fields(const Mamba2Options&) {
  return std::to_array<RetiredField>({{.name = "chunk", .value = "64"}});
}

class Mamba2 : public RecurrentMixer {
 public:
  explicit Mamba2(const Mamba2Options& options);

  const Mamba2Options& options() const { return options_; }  // with heads filled in

 protected:
  Tensor normalised(const Tensor& o, const Tensor& gate) override;
  Recurred recur(const RecurInputs& in) override;

 private:
  int64_t inner() const { return options_.heads * options_.head_dim; }
  std::vector<Tensor> inputs(const RecurInputs& in);
  int64_t convolved_channels() const { return inner() + 2 * options_.groups * options_.state; }

  Mamba2Options options_;
  Projection in_proj_{nullptr};
  ShortConvolution conv_{nullptr};
  Tensor A_log_, dt_bias_, D_;  // [heads]
};

}  // namespace ovq::nn
