// The cache of keys or values of attention layers, [B, time, Hkv, D].
#pragma once

#include "ovq/kernels/ovq_state.h"
#include "ovq/ops/torch.h"

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

}  // namespace ovq::nn
