// Gradients of the parts of a batch, added up in pairs: (g0 + g1) + (g2 + g3). Two processes with half of the parts
// each add in the same order, so their result equals that of one process bit for bit.
#pragma once

#include <vector>

#include "ovq/ops/torch/torch.h"

namespace ovq::train {

class GradientSums {
 public:
  explicit GradientSums(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}

  void end_part();  // takes the parameters' gradients (which may be undefined) and leaves them empty
  void finish();    // sets the parameters' gradients to the sums over all parts and clears the sums

 private:
  struct Sum {
    int64_t parts = 0;
    std::vector<at::Tensor> gradients;
  };
  void add_last_two();

  std::vector<at::Tensor> parameters_;
  std::vector<Sum> sums_;  // each covers more parts than the next
};

}  // namespace ovq::train
