#include "ovq/train/gradient_sums.h"

namespace ovq::train {

void GradientSums::end_part() {
  Sum sum{.parts = 1};
  for (at::Tensor& parameter : parameters_) sum.gradients.push_back(std::exchange(parameter.mutable_grad(), {}));
  sums_.push_back(std::move(sum));
  while (sums_.size() > 1 && sums_[sums_.size() - 2].parts == sums_.back().parts) add_last_two();
}

void GradientSums::finish() {
  while (sums_.size() > 1) add_last_two();
  for (size_t i = 0; i < parameters_.size() && !sums_.empty(); ++i)
    parameters_[i].mutable_grad() = std::move(sums_.front().gradients[i]);
  sums_.clear();
}

void GradientSums::add_last_two() {
  const Sum last = std::move(sums_.back());
  sums_.pop_back();
  Sum& sum = sums_.back();
  sum.parts += last.parts;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!sum.gradients[i].defined())
      sum.gradients[i] = last.gradients[i];
    else if (last.gradients[i].defined())
      sum.gradients[i].add_(last.gradients[i]);
  }
}

}  // namespace ovq::train
