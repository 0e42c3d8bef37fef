#include "ovq/nn/cache.h"

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq::nn {
namespace {

using at::Tensor;

// Allocates memory for `capacity` time steps; returns a view of the first ones, filled with `before` (undefined:
// nothing) and x.
Tensor with_room(const Tensor& before, const Tensor& x, int64_t capacity, at::ScalarType type) {
  const int64_t length = before.defined() ? before.size(1) : 0;
  const Tensor memory = at::empty({x.size(0), capacity, x.size(2), x.size(3)}, x.options().dtype(type));
  if (length > 0) memory.narrow(1, 0, length).copy_(before);
  memory.narrow(1, length, x.size(1)).copy_(x);
  return memory.narrow(1, 0, length + x.size(1));
}

// Number of free time steps behind `cache` in memory made by with_room; 0 for other memory. Tensors without elements
// have strides but no memory.
int64_t room_behind(const Tensor& cache) {
  const bool rows = cache.stride(3) == 1 && cache.stride(2) == cache.size(3) &&
                    cache.stride(1) == cache.size(2) * cache.size(3) && cache.stride(1) > 0;
  if (!rows) return 0;
  const int64_t elements = static_cast<int64_t>(cache.storage().nbytes() / cache.element_size());
  if (elements == 0 || elements < cache.size(0) * cache.stride(0)) return 0;
  return (cache.stride(0) - cache.storage_offset()) / cache.stride(1) - cache.size(1);
}

// Writes x to the time steps of `all` from `first` on, rounded if `all` is bfloat16. For a single token this copies a
// row per sequence, which is faster than torch's copy.
void append_rows(const Tensor& all, int64_t first, const Tensor& x) {
  const bool narrow = all.scalar_type() == at::kBFloat16;
  const bool rows = x.is_cpu() && x.is_contiguous() && x.scalar_type() == at::kFloat && all.stride(3) == 1 &&
                    all.stride(2) == x.size(3) && (narrow || all.scalar_type() == at::kFloat);
  if (!rows || x.size(1) != 1) {
    all.narrow(1, first, x.size(1)).copy_(x);
    return;
  }
  const int64_t row = x.size(2) * x.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    const float* const from = x.data_ptr<float>() + b * row;
    const int64_t place = b * all.stride(0) + first * all.stride(1);
    if (narrow) {
      auto* const data = reinterpret_cast<kernels::Bfloat16*>(all.data_ptr<at::BFloat16>());
      kernels::detail::narrow_row(from, row, data + place);
    } else {
      std::copy_n(from, row, all.data_ptr<float>() + place);
    }
  }
}

}  // namespace

int64_t cache_capacity(int64_t tokens, int64_t window) {
  return window == 0 ? tokens + std::max<int64_t>(64, tokens / 16) : 2 * window;
}

Tensor extend_cache(Tensor& cache, const Tensor& x, int64_t window, kernels::StateDtype dtype) {
  const bool narrow = dtype == kernels::StateDtype::bfloat16;
  check(!narrow || !(at::GradMode::is_enabled() && x.requires_grad()), "attention",
        "the state is stored as bfloat16, which is for inference; gradients need float32 (or torch.no_grad())");
  const at::ScalarType type = narrow ? at::kBFloat16 : x.scalar_type();
  const bool in_place = !at::GradMode::is_enabled();
  if (cache.defined()) {
    check(cache.dim() == 4 && cache.size(0) == x.size(0) && cache.sizes().slice(2) == x.sizes().slice(2), "attention",
          "state has shape ", cache.sizes(), "; must be [", x.size(0), ", time, ", x.size(2), ", ", x.size(3), "]");
    cache = cache.to(type);  // autocast may have begun or ended since, or the dtype changed
  }
  const int64_t length = cache.defined() ? cache.size(1) : 0;
  const bool appends = in_place && cache.defined() && x.size(1) <= room_behind(cache);
  Tensor all;
  if (appends) {
    all = cache.as_strided({x.size(0), length + x.size(1), x.size(2), x.size(3)}, cache.strides());
    append_rows(all, length, x);
    cache = all;
  } else if (in_place && window == 0) {
    all = cache = with_room(cache, x, cache_capacity(length + x.size(1), window), type);
  } else {
    all = cache.defined() ? at::cat({cache, x.to(type)}, 1) : x.to(type);
    // The memory behind x belongs to another tensor.
    if (!in_place && room_behind(all) > 0) all = all.clone(at::MemoryFormat::Contiguous);
    cache = all;
  }
  if (window == 0) return all;
  const int64_t kept = std::min(all.size(1), window - 1);
  cache = all.narrow(1, all.size(1) - kept, kept);
  // Keeps only the end of the window, in memory of its own.
  if (in_place && (!appends || room_behind(cache) == 0)) {
    cache = with_room({}, cache, cache_capacity(kept, window), type);
  }
  return all;
}

CacheRollback::CacheRollback(MixerState& state, bool grows) : state_(state) {
  for (size_t i = 0; i < before_.size(); ++i) {
    const Tensor cache = state.tensor(kNames[i]);
    if (!cache.defined()) continue;
    lengths_[i] = cache.size(1);
    if (!grows) before_[i] = cache;
  }
}

CacheRollback::~CacheRollback() {
  if (kept_) return;
  for (size_t i = 0; i < before_.size(); ++i) {
    if (before_[i].defined()) {
      state_.tensors[kNames[i]] = before_[i];
    } else if (lengths_[i] > 0) {
      Tensor& cache = state_.tensors[kNames[i]];
      cache = cache.narrow(1, 0, lengths_[i]);
    } else {
      state_.tensors.erase(kNames[i]);
    }
  }
}

}  // namespace ovq::nn
