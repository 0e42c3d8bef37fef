// What an OVQ dictionary is made with, and the sizes that follow from it. See docs/semantics.md.
#pragma once

#include <cstdint>
#include <optional>

namespace ovq::kernels {

enum class Growth : uint8_t {
  plateau,  // t * N / (t + N), rounded to nearest
  linear,   // t * N / total_tokens (ablation)
  all,      // every key is a centroid until there are N
};

enum class NewCentroids : uint8_t {
  spread,  // the keys least similar to what is there
  random,  // positions drawn from (seed, kv head, chunk) (ablation)
};

struct OvqOptions {
  int64_t chunk = 128;       // L
  int64_t centroids = 2048;  // N
  Growth growth = Growth::plateau;
  int64_t total_tokens = 0;  // for Growth::linear
  NewCentroids new_centroids = NewCentroids::spread;
  std::optional<float>
      rate;                // a constant learning rate in (0, 1]; absent: 1 / count, the running mean (the paper's rule)
  bool normalize = false;  // rows of D_k rescaled to unit norm after each write
  bool rope = false;       // rotary window of two chunks, dictionary one chunk behind
  float rope_base = 10000.0f;
  uint64_t seed = 0;      // for NewCentroids::random
  bool weighted = false;  // each token has a weight; counts are sums of weights

  bool operator==(const OvqOptions&) const = default;
};

// Centroids after `tokens` committed tokens (before the dictionary's own limits: it never shrinks and grows by at most
// L a chunk).
int64_t target_size(const OvqOptions& options, int64_t tokens);

// Centroids that the write of a chunk adds to `size`, `tokens` being the tokens committed after it.
int64_t new_centroid_count(const OvqOptions& options, int64_t size, int64_t tokens);

// A dictionary of `size` centroids at `position`, after `tokens` more tokens.
int64_t size_after(const OvqOptions& options, int64_t size, int64_t position, int64_t tokens);

// Tokens that a state at `position` holds in their original form: the incomplete chunk; with rope the one before it
// too.
int64_t pending_tokens(const OvqOptions& options, int64_t position);

}  // namespace ovq::kernels
