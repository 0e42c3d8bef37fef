#include "ovq/ops/ovq_attention/options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ovq/base/error.h"

namespace ovq::kernels {

void check_options(const char* op, const OvqOptions& options, int64_t key_dim) {
  check_fields(op, options);
  check(options.chunk <= std::numeric_limits<int32_t>::max(), op, "chunk is ", options.chunk, "; must be below 2^31");
  check(options.growth != Growth::linear || options.total_tokens >= 1, op, "total_tokens is ", options.total_tokens,
        "; linear growth needs at least 1");
  check(!options.weighted || !options.rate, op, "weights do not go with a constant rate");
  check(!options.value_norms || !options.rate, op, "value_norms do not go with a constant rate");
  check(!options.rope || key_dim % 2 == 0, op, "q has dim ", key_dim, "; rope needs an even one");
  check(!options.rope || (std::isfinite(options.rope_base) && options.rope_base > 1.0f), op, "rope_base is ",
        options.rope_base, "; must be finite and above 1");
}

int64_t target_size(const OvqOptions& options, int64_t tokens) {
  using Wide = __int128;  // tokens * centroids may exceed 64 bits
  const Wide t = tokens, n = options.centroids;
  switch (options.growth) {
    case Growth::plateau:
      return static_cast<int64_t>((2 * t * n + t + n) / (2 * (t + n)));
    case Growth::linear:
      return static_cast<int64_t>(std::min({n, t, std::max(Wide{1}, t * n / options.total_tokens)}));
    case Growth::all:
      return static_cast<int64_t>(std::min(t, n));
    case Growth::square_root: {
      // N (1 - 1 / s), rewritten without the difference, which would cancel
      const auto twice = 2 * static_cast<double>(tokens);
      const double s = std::sqrt(1 + twice / static_cast<double>(options.centroids));
      return std::min<int64_t>(tokens, std::max<int64_t>(1, std::llround(twice / (s * (s + 1)))));
    }
  }
  return 0;
}

int64_t new_centroid_count(const OvqOptions& options, int64_t size, int64_t tokens) {
  return std::clamp<int64_t>(target_size(options, tokens) - size, 0, options.chunk);
}

int64_t size_after(const OvqOptions& options, int64_t size, int64_t position, int64_t tokens) {
  const int64_t chunk = options.chunk, lag = options.rope ? chunk : 0;
  const int64_t written = (position + tokens) / chunk, writes = written - std::max(position, lag) / chunk;
  if (writes <= 0) return size;
  // The sum of new_centroid_count over the writes. The target never shrinks, and the size grows by at most a chunk per
  // write. So the size is above the target, or equal to it, or has grown by a chunk in every write.
  return std::max(size, std::min(target_size(options, written * chunk - lag), size + writes * chunk));
}

int64_t pending_tokens(const OvqOptions& options, int64_t position) {
  const int64_t chunk = options.chunk;
  if (!options.rope || position < chunk) return position % chunk;
  return chunk + position % chunk;
}

}  // namespace ovq::kernels
