// AdamW over the named parameters of a model, in one pass over all of them:
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p (1 - rate decay) - rate m' / (sqrt(v') + eps)
// with m' = m / (1 - b1^t), v' = v / (1 - b2^t). Only matrices decay: no norms, betas, gates, biases, convolutions or
// codebooks. torch::optim is not used because the keys of its state differ between versions of torch and so cannot be
// stored in a checkpoint.
//
// With several ranks each may keep the moments of only its share of the parameters (ZeRO, stage 1): all parameters, one
// after the other, are cut into as many equal shares as there are ranks. A rank updates its own share and must be sent
// the others.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ovq/ops/torch/torch.h"

namespace ovq::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;
};

// Which of the ranks that share the moments this is.
struct Shard {
  int64_t rank = 0, ranks = 1;
};

class AdamW {
 public:
  AdamW(const torch::nn::Module& model, const AdamWOptions& options, const Shard& shard = {});

  // Returns the norm of the gradients over all parameters; scales the gradients to `clip` if the norm exceeds it (0:
  // never).
  double clip_gradients(double clip);
  void step(double rate);
  void zero_gradients();

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // The moments by name, "m.<parameter>" and "v.<parameter>". Without shards these are the optimiser's own tensors;
  // with shards they are copies, zero where the moments belong to other ranks.
  std::map<std::string, at::Tensor> state() const;
  int64_t state_bytes() const;  // held by this rank

  // The part of a parameter that one rank updates.
  struct ParameterShard {
    std::string name;
    at::Tensor parameter;  // [count], a view of the parameter
    int64_t rank, first;   // `first`: its offset in the flattened parameter
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
    int64_t offset;        // of the first element, counted over all parameters
    int64_t first, count;  // the elements that m and v belong to
  };
  // The elements of a parameter that one thread takes at a time.
  struct Block {
    const Entry* entry;
    float* gradient;
    int64_t first, count;
  };
  enum class Which { all, own };
  std::vector<Block> blocks(Which which) const;                               // only parameters that have gradients
  std::pair<int64_t, int64_t> share(const Entry& entry, int64_t rank) const;  // first element and count

  AdamWOptions options_;
  Shard shard_;
  int64_t total_ = 0;  // elements of all parameters
  std::vector<Entry> entries_;
  int64_t steps_ = 0;
};

}  // namespace ovq::train
