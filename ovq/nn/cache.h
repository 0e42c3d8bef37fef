// The cache of keys or values of attention layers, [B, time, Hkv, D].
#pragma once

#include <array>

#include "ovq/nn/mixer.h"
#include "ovq/ops/ovq_attention/state.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::nn {

// Capacity of a new cache of `tokens` tokens: without a window a sixteenth more, so that decoding rarely copies it;
// with a window, twice the window.
int64_t cache_capacity(int64_t tokens, int64_t window);

// Appends x and returns the cached time steps with x. Afterwards `cache` (undefined: empty) holds what later queries
// can see: all, or the last `window` - 1 if window > 0. Without gradients x is written into free memory behind the
// cache, if any. With bfloat16, x is rounded when it enters the cache and the result is bfloat16; gradients are then a
// std::invalid_argument.
at::Tensor extend_cache(at::Tensor& cache, const at::Tensor& x, int64_t window,
                        kernels::StateDtype dtype = kernels::StateDtype::float32);

// Keys and values of a state while a call extends them: put back as they were, unless they are kept.
class CacheRollback {
 public:
  static constexpr const char* kNames[] = {"keys", "values"};

  // grows: they are only extended, as without a window. Then their length is enough, and no second copy stays in
  // memory.
  CacheRollback(MixerState& state, bool grows);
  ~CacheRollback();
  CacheRollback(const CacheRollback&) = delete;
  CacheRollback& operator=(const CacheRollback&) = delete;
  void keep() { kept_ = true; }

 private:
  MixerState& state_;
  bool kept_ = false;
  std::array<int64_t, 2> lengths_ = {};
  std::array<at::Tensor, 2> before_;
};

}  // namespace ovq::nn
