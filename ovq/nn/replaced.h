// What stands in for tensors and parts of modules while a call runs. Parameters are read through `current`, and parts
// that compute y = f(x) look themselves up in `call_of`: so Python can put a pruned weight, a functional call's values
// or a module of its own (LoRA) where the C++ module has its own. Without replacements this costs one look at a
// thread's pointer.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "ovq/ops/torch.h"

namespace ovq::nn {

// x -> y. Short convolutions also bring the inputs before x (undefined: none) and cu_seqlens.
using PartCall = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& before,
                                          const c10::optional<at::Tensor>& cu_seqlens)>;

struct Replaced {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors;  // by the module's own
  std::unordered_map<const torch::nn::Module*, PartCall> parts;    // by the module's own
};

// For what this thread calls during its life; null: nothing is replaced. The one before it returns afterwards.
class ReplacedGuard {
 public:
  explicit ReplacedGuard(const Replaced* replaced);
  ~ReplacedGuard();
  ReplacedGuard(const ReplacedGuard&) = delete;
  ReplacedGuard& operator=(const ReplacedGuard&) = delete;

 private:
  const Replaced* before_;
};

// The tensor to compute with where a module has `own`.
const at::Tensor& current(const at::Tensor& own);

// The same, to write into. One that is itself computed (parametrize) is a c10::TypeError: the values would be lost.
const at::Tensor& current_to_write(const char* name, const at::Tensor& own);

// What to call in place of `part`; null: itself.
const PartCall* call_of(const torch::nn::Module& part);

// Whether anything is, on this thread now.
bool any_replaced();

// Whether all of them (null ones do not count) are called themselves: only then may one op do the work of several.
bool all_own(const std::vector<const torch::nn::Module*>& parts);

}  // namespace ovq::nn
