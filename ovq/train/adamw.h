// AdamW over the named parameters of a model, in one pass over all of them:
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p (1 - rate decay) - rate m' / (sqrt(v') + eps)
// with m' = m / (1 - b1^t), v' = v / (1 - b2^t). No decay on norms, betas, gates, biases and codebooks: what has fewer
// than two dimensions, or is a convolution or a codebook. torch::optim keeps its state under keys that differ between
// versions of torch, which a checkpoint cannot use.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ovq/ops/torch.h"

namespace ovq::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;
};

class AdamW {
 public:
  AdamW(const torch::nn::Module& model, const AdamWOptions& options);

  // The gradients' norm over all parameters, which are scaled down to `clip` if they exceed it (0: never).
  double clip_gradients(double clip);
  void step(double rate);
  void zero_gradients();

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // The moments by name, "m.<parameter>" and "v.<parameter>": the optimiser's own tensors.
  std::map<std::string, at::Tensor> state() const;

  static bool decays(const std::string& name, const at::Tensor& parameter);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter, m, v;
    bool decay;
  };
  // A piece of a parameter, as much as a thread takes at a time.
  struct Block {
    const Entry* entry;
    float* gradient;
    int64_t first, count;
  };
  std::vector<Block> blocks() const;  // of all that have gradients

  AdamWOptions options_;
  std::vector<Entry> entries_;
  int64_t steps_ = 0;
};

}  // namespace ovq::train
