// The options of an OVQ dictionary and the sizes that follow from them. See docs/semantics.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ovq/base/fields.h"

namespace ovq::kernels {

enum class Growth : uint8_t {
  plateau,      // t * N / (t + N), rounded to nearest
  linear,       // t * N / total_tokens (ablation)
  all,          // every key is a centroid until there are N
  square_root,  // N (1 - 1 / sqrt(1 + 2 t / N)), rounded, at least 1: keeps more for later (not in the paper)
};

constexpr auto enum_names(Growth) {
  return std::to_array<EnumName<Growth>>({{Growth::plateau, "plateau"},
                                          {Growth::linear, "linear"},
                                          {Growth::all, "all"},
                                          {Growth::square_root, "square-root"}});
}

enum class NewCentroids : uint8_t {
  spread,  // the keys least similar to the dictionary
  random,  // positions drawn from (seed, kv head, chunk) (ablation)
};

constexpr auto enum_names(NewCentroids) {
  return std::to_array<EnumName<NewCentroids>>({{NewCentroids::spread, "spread"}, {NewCentroids::random, "random"}});
}

struct OvqOptions {
  int64_t chunk = 128;       // L
  int64_t centroids = 2048;  // N
  Growth growth = Growth::plateau;
  int64_t total_tokens = 0;
  NewCentroids new_centroids = NewCentroids::spread;
  std::optional<float> rate;  // absent: 1 / count, the running mean (the paper's rule)
  bool normalize = false;
  bool rope = false;  // the dictionary is then one chunk behind
  float rope_base = 10000.0f;
  uint64_t seed = 0;
  bool weighted = false;     // each token has a weight; counts are sums of weights
  bool value_norms = false;  // centroids' values have the average norm of their tokens' values (not in the paper)

  bool operator==(const OvqOptions&) const = default;
};

// `weighted` is not listed: it follows from whether weights are given. State files store the fields in this order, so
// append new ones at the end.
template <class Fields>
void list_fields(Fields& field, OvqOptions& o) {
  field("chunk", o.chunk, "tokens between writes to the dictionary", at_least(1));
  field("centroids", o.centroids, "maximum number of centroids per kv head", at_least(1));
  field("growth", o.growth, "how the number of centroids grows with the position");
  field("total_tokens", o.total_tokens, "length at which linear growth reaches `centroids`");
  field("new_centroids", o.new_centroids, "which keys become new centroids");
  field("rate", o.rate, "constant learning rate; by default, centroids are running means", above_up_to(0, 1));
  field("rope_base", o.rope_base, "base of the rotary positions");
  field("normalize", o.normalize, "rescale the key centroids to unit norm after each write");
  field("rope", o.rope, "rotary positions in a window of two chunks; the head dim must be even");
  field("seed", o.seed, "seed of random new centroids");
  field("value_norms", o.value_norms, "give the value of a centroid the mean norm of its tokens' values");
}

// The largest weight accepted. Below it float32 can hold sums of weights.
inline constexpr float kLargestWeight = 1e30f;

// std::invalid_argument where options do not fit each other or keys of this size.
void check_options(const char* op, const OvqOptions& options, int64_t key_dim);

// Centroids after `tokens` committed tokens, before the dictionary's own limits: it never shrinks and grows by at most
// L per chunk.
int64_t target_size(const OvqOptions& options, int64_t tokens);

// The number of centroids that a write adds to `size`; `tokens` counts the tokens committed after it.
int64_t new_centroid_count(const OvqOptions& options, int64_t size, int64_t tokens);

// The size of a dictionary of `size` centroids at `position` after `tokens` more tokens.
int64_t size_after(const OvqOptions& options, int64_t size, int64_t position, int64_t tokens);

// The number of tokens that a state at `position` holds in their original form: the incomplete chunk and, with rope,
// the chunk before it.
int64_t pending_tokens(const OvqOptions& options, int64_t position);

}  // namespace ovq::kernels
