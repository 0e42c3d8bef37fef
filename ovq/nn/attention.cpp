#include "ovq/nn/attention.h"

#include <algorithm>

#include "ovq/kernels/error.h"
#include "ovq/nn/rotary.h"
#include "ovq/ops/attention.h"

namespace ovq::nn {
namespace {

// Tokens a cache of `tokens` has room for when it is made: without a window a sixteenth more, so that a token at a time
// copies it rarely; with one, twice the window.
int64_t cache_capacity(int64_t tokens, int64_t window) {
  return window == 0 ? tokens + std::max<int64_t>(64, tokens / 16) : 2 * window;
}

// A view of the first `length` time steps of memory for `capacity`.
Tensor with_room(const Tensor& x, int64_t capacity) {
  const Tensor memory = at::empty({x.size(0), capacity, x.size(2), x.size(3)}, x.options());
  memory.narrow(1, 0, x.size(1)).copy_(x);
  return memory.narrow(1, 0, x.size(1));
}

// Time steps behind those that `cache` shows. Tensors without elements have strides, but no memory.
int64_t room_behind(const Tensor& cache) {
  const int64_t elements = static_cast<int64_t>(cache.storage().nbytes() / cache.element_size());
  if (elements == 0 || elements < cache.size(0) * cache.stride(0)) return 0;
  return (cache.stride(0) - cache.storage_offset()) / cache.stride(1) - cache.size(1);
}

// The cached time steps and those of x behind them; `cache` keeps what later queries may see.
Tensor extend(Tensor& cache, const Tensor& x, int64_t window) {
  const bool in_place = !at::GradMode::is_enabled();
  if (cache.defined()) {
    kernels::check(cache.dim() == 4 && cache.size(2) == x.size(2) && cache.size(3) == x.size(3), "attention",
                   "state has shape ", cache.sizes(), "; must be [batch, time, ", x.size(2), ", ", x.size(3), "]");
    cache = cache.to(x.scalar_type());  // autocast may have begun or ended since
  }
  const int64_t length = cache.defined() ? cache.size(1) : 0;
  Tensor all;
  if (in_place && cache.defined() && x.size(1) <= room_behind(cache)) {
    all = cache.as_strided({x.size(0), length + x.size(1), x.size(2), x.size(3)}, cache.strides());
    all.narrow(1, length, x.size(1)).copy_(x);
    cache = all;
  } else {
    all = cache.defined() ? at::cat({cache, x}, 1) : x;
    cache = all;
    if (in_place && window == 0) all = cache = with_room(all, cache_capacity(all.size(1), window));
  }
  if (window == 0) return all;
  const int64_t kept = std::min(all.size(1), window - 1);
  cache = all.narrow(1, all.size(1) - kept, kept);
  // Of all that was read only the window's end is kept in memory.
  if (in_place && room_behind(cache) == 0) cache = with_room(cache, cache_capacity(kept, window));
  return all;
}

}  // namespace

Attention::Attention(const AttentionOptions& options) : AttentionHeads("attention", options.heads), options_(options) {
  options_.heads = heads();
  kernels::check(options.window >= 0, "attention", "window is ", options.window, "; must be at least 1, or 0 for none");
  kernels::check(!options.rope || heads().head_dim % 2 == 0, "attention", "head_dim is ", heads().head_dim,
                 "; must be even with rope");
  kernels::check(options.rope_base > 0, "attention", "rope_base is ", options.rope_base, "; must be positive");
  StateLayout layout = head_layout();
  layout.add("window", options.window).add("rope", options.rope);
  if (options.rope) layout.add("rope_base", options.rope_base);
  set_layout(layout);
}

int64_t Attention::state_bytes(int64_t tokens) const {
  const int64_t rows = cache_capacity(tokens, options_.window);
  return tokens == 0 ? 0 : 2 * rows * heads().kv_heads * heads().head_dim * static_cast<int64_t>(sizeof(float));
}

Tensor Attention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  auto [q, k, v] = project(x);
  q = unit_norm(q);
  k = unit_norm(k);
  if (options_.rope) {
    const RotaryOptions rotation{options_.rope_base, state != nullptr ? state->position : 0, cu_seqlens};
    const Tensor table = rotary_table(q, rotation);
    q = rotate(q, table);
    k = rotate(k, table);
  }
  if (state == nullptr) return output(ops::attention(q, k, v, beta(), options_.window, 0, cu_seqlens));
  const Tensor keys = extend(state->tensors["keys"], k, options_.window);
  const Tensor values = extend(state->tensors["values"], v, options_.window);
  state->position += x.size(1);
  return output(ops::attention(q, keys, values, beta(), options_.window, keys.size(1) - q.size(1)));
}

}  // namespace ovq::nn
