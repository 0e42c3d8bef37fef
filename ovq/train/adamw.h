// AdamW over the named parameters of a model, in one pass over all of them:
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p (1 - rate decay) - rate m' / (sqrt(v') + eps)
// with m' = m / (1 - b1^t), v' = v / (1 - b2^t). No decay on norms, betas, gates, biases and codebooks: what has fewer
// than two dimensions, or is a convolution or a codebook. torch::optim keeps its state under keys that differ between
// versions of torch, which a checkpoint cannot use.
//
// Of several ranks each may keep the moments of its share of the parameters only (ZeRO, stage 1): the parameters, one
// after the other, are cut into as many equal pieces as there are ranks. A rank updates its own piece and has to be
// given the others.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ovq/ops/torch.h"

namespace ovq::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;
};

// Which rank keeps moments, of how many that share them.
struct Shard {
  int64_t rank = 0, ranks = 1;
};

class AdamW {
 public:
  AdamW(const torch::nn::Module& model, const AdamWOptions& options, const Shard& shard = {});

  // The gradients' norm over all parameters, which are scaled down to `clip` if they exceed it (0: never).
  double clip_gradients(double clip);
  void step(double rate);
  void zero_gradients();

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // The moments by name, "m.<parameter>" and "v.<parameter>": the optimiser's own tensors; with shards copies with
  // zeros where other ranks' moments belong.
  std::map<std::string, at::Tensor> state() const;
  int64_t state_bytes() const;  // held by this rank

  // What of a parameter one rank updates.
  struct ParameterShard {
    std::string name;
    at::Tensor parameter;  // [count], a part of the parameter
    int64_t rank, first;   // where it begins in the flattened parameter
    at::Tensor m, v;       // [count], the optimiser's own; undefined on other ranks
  };
  std::vector<ParameterShard> parameter_shards() const;  // of all ranks, in the same order on each
  const Shard& shard() const { return shard_; }

  static bool decays(const std::string& name, const at::Tensor& parameter);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter, m, v;
    bool decay;
    int64_t offset;        // of the first element, over all parameters
    int64_t first, count;  // those of its elements that m and v are of
  };
  // A piece of a parameter, as much as a thread takes at a time.
  struct Block {
    const Entry* entry;
    float* gradient;
    int64_t first, count;
  };
  enum class Which { all, own };
  std::vector<Block> blocks(Which which) const;                               // of those that have gradients
  std::pair<int64_t, int64_t> share(const Entry& entry, int64_t rank) const;  // its first element and their number

  AdamWOptions options_;
  Shard shard_;
  int64_t total_ = 0;  // elements of all parameters
  std::vector<Entry> entries_;
  int64_t steps_ = 0;
};

}  // namespace ovq::train
