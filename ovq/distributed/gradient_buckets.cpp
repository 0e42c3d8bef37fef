#include "ovq/distributed/gradient_buckets.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include "ovq/base/error.h"

namespace ovq::distributed {

using torch::autograd::variable_list;
using torch::autograd::utils::LambdaPostHook;

GradientBuckets::GradientBuckets(std::shared_ptr<ProcessGroup> group, std::vector<at::Tensor> parameters,
                                 int64_t bucket_bytes)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      bucket_of_(parameters_.size()),
      reached_(parameters_.size()) {
  const int64_t most = std::max<int64_t>(1, bucket_bytes / static_cast<int64_t>(sizeof(float)));
  int64_t room = 0;
  for (size_t i = parameters_.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters_[i];
    check(parameter.is_cpu() && parameter.scalar_type() == at::kFloat && parameter.requires_grad(), "processes",
          "parameter ", i, " must be a float tensor on the CPU that requires gradients");
    if (buckets_.empty() || parameter.numel() > room) {
      buckets_.emplace_back();
      room = most;
    }
    room -= parameter.numel();
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back().parameters.push_back(i);
  }
  for (Bucket& bucket : buckets_) {
    int64_t size = static_cast<int64_t>(bucket.parameters.size()), first = 0;
    for (const size_t i : bucket.parameters) size += parameters_[i].numel();
    bucket.buffer = at::zeros({size});
    bucket.missing = bucket.parameters.size();
    for (const size_t i : bucket.parameters) {
      bucket.gradients.push_back(bucket.buffer.narrow(0, first, parameters_[i].numel()).view(parameters_[i].sizes()));
      first += parameters_[i].numel();
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Hook hook{.accumulator = torch::autograd::impl::grad_accumulator(parameters_[i])};
    hook.key = hook.accumulator->add_post_hook(
        std::make_unique<LambdaPostHook>([this, i](const variable_list& outputs, const variable_list&) {
          if (sending_) reached(i);
          return outputs;
        }));
    hooks_.push_back(std::move(hook));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

void GradientBuckets::reached(size_t parameter) {
  if (reached_[parameter]) return;
  reached_[parameter] = true;
  --buckets_[bucket_of_[parameter]].missing;
  send_ready(/*all=*/false);
}

void GradientBuckets::send_ready(bool all) {
  while (sent_ < buckets_.size() && (all || buckets_[sent_].missing == 0)) send(buckets_[sent_++]);
}

// Makes the gradients views of the buffer, which frees the tensors that autograd allocated.
void GradientBuckets::send(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(bucket.parameters.size());
  auto* const present = bucket.buffer.narrow(0, bucket.buffer.numel() - count, count).data_ptr<float>();
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    at::Tensor& gradient = parameters_[bucket.parameters[i]].mutable_grad();
    present[i] = gradient.defined() ? 1 : 0;
    if (gradient.defined())
      bucket.gradients[i].copy_(gradient);
    else
      bucket.gradients[i].zero_();
    gradient = bucket.gradients[i];
  }
  bucket.pending = group_->begin_sum(bucket.buffer);
}

void GradientBuckets::finish() {
  send_ready(/*all=*/true);
  for (Bucket& bucket : buckets_) {
    bucket.pending.wait();
    const auto count = static_cast<int64_t>(bucket.parameters.size());
    const auto* const present = bucket.buffer.narrow(0, bucket.buffer.numel() - count, count).data_ptr<float>();
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      if (present[i] == 0) parameters_[bucket.parameters[i]].mutable_grad() = at::Tensor();
    }
    bucket.missing = bucket.parameters.size();
  }
  std::fill(reached_.begin(), reached_.end(), false);
  sent_ = 0;
  sending_ = false;
}

}  // namespace ovq::distributed
