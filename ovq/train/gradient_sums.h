// Gradients of the parts of a batch, added up in pairs: (g0 + g1) + (g2 + g3). Two processes that have half of the
// parts each add them in the same order, so they have the bits of one process with all.
#pragma once

#include <vector>

#include "ovq/ops/torch.h"

namespace ovq::train {

class GradientSums {
 public:
  explicit GradientSums(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}

  void end_part();  // takes the parameters' gradients away, which may be undefined
  void finish();    // the parameters' gradients are the sums over all parts; nothing is left here

 private:
  struct Sum {
    int64_t parts = 0;
    std::vector<at::Tensor> gradients;
  };
  void add_last_two();

  std::vector<at::Tensor> parameters_;
  std::vector<Sum> sums_;  // each of more parts than the one behind it
};

}  // namespace ovq::train
