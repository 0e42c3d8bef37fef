// Decides which tokens found a centroid when a chunk is written, and which centroid the others join.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "ovq/base/random.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/ovq_attention/dictionary.h"

namespace ovq::kernels {

uint64_t random_rank(uint64_t seed, int64_t kv_head, int64_t chunk, int64_t position) {
  uint64_t hash = seed;
  for (const int64_t part : {kv_head, chunk, position}) {
    hash = mix_bits(hash + kGoldenRatio + static_cast<uint64_t>(part));
  }
  return hash;
}

namespace detail {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr int32_t kFounds = -1;  // marks a position that founds a centroid, before the centroid has a number

// Replaces kFounds by the numbers of new centroids, from `size` on in the order of positions. No branches, here and
// below: which tokens found is practically random, and in small chunks mispredictions dominate the time.
void number_founders(const ChunkWrite& write, int64_t size) {
  const int64_t chunk = write.options->chunk;
  int32_t* assignment = write.assignment;
  auto centroid = static_cast<int32_t>(size);
  for (int64_t p = 0; p < chunk; ++p) {
    const int32_t founds = assignment[p] == kFounds ? 1 : 0;
    assignment[p] = founds != 0 ? ~centroid : assignment[p];
    centroid += founds;
  }
}

// Maps a float to an integer with the same order; -0 becomes 0.
int32_t ordered(float x) {
  const auto bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits < 0 ? bits ^ std::numeric_limits<int32_t>::max() : bits;
}

// assignment <- ~centroid for the positions with the smallest order(position), the earlier one on a tie, numbered by
// position; nearest[position] for the others, 0 if `nearest` is null.
template <class Order>
void found_first(const ChunkWrite& write, int64_t size, WriteScratch& scratch, const int32_t* nearest,
                 const Order& order) {
  const int64_t chunk = write.options->chunk;
  const auto other = [&](int64_t p) { return nearest == nullptr ? 0 : nearest[p]; };
  if (write.new_count == 0) {
    for (int64_t p = 0; p < chunk; ++p) write.assignment[p] = other(p);
    return;
  }
  int64_t* numbers = scratch.order.ensure(2 * padded(chunk));
  int64_t* ranks = numbers + padded(chunk);
  for (int64_t p = 0; p < chunk; ++p) numbers[p] = order(p);
  std::fill(numbers + chunk, ranks, 0);
  read_kernels().rank(numbers, chunk, ranks);
  auto centroid = static_cast<int32_t>(size);
  for (int64_t p = 0; p < chunk; ++p) {
    const bool founds = ranks[p] < write.new_count;
    write.assignment[p] = founds ? ~centroid : other(p);
    centroid += founds ? 1 : 0;
  }
}

// The priority of a token of weight w as a founder: w (1 - s), where a similarity s above 1 counts as 1. Ties are
// ordered by similarity, so that with weights of 1 the order is that of the similarities.
struct FounderRank {
  float score, similarity;

  FounderRank(float weight, float similarity)
      : score(weight * std::max(0.0f, 1.0f - similarity)), similarity(similarity) {}
  bool operator<(const FounderRank& other) const {  // whether this one has priority
    return score > other.score || (score == other.score && similarity < other.similarity);
  }
  int64_t order() const {  // smaller for higher priority
    return int64_t{ordered(-score)} * (int64_t{1} << 32) + (int64_t{ordered(similarity)} + (int64_t{1} << 31));
  }
};

// Farthest-first traversal: starts with key 0 (with weights, the heaviest) and repeatedly adds the key with the highest
// priority against those already chosen; without weights that is the least similar key.
template <class Rank>
void found_farthest_first(const Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch, int64_t start,
                          const Rank& rank) {
  const int64_t chunk = write.options->chunk;
  float* nearest = scratch.row.ensure(2 * chunk);
  float* similarity = nearest + chunk;
  std::fill_n(nearest, chunk, kNegativeInfinity);
  std::fill_n(write.assignment, chunk, 0);
  int64_t chosen = start;
  for (int64_t i = 0; i < write.new_count; ++i) {
    write.assignment[chosen] = kFounds;
    read_kernels().similarities(scratch.panels.data(), chunk, dictionary.key_dim, dictionary.pending_key(chosen),
                                similarity);
    for (int64_t p = 0; p < chunk; ++p) nearest[p] = similarity[p] > nearest[p] ? similarity[p] : nearest[p];
    int64_t farthest = 0;
    while (farthest < chunk && write.assignment[farthest] == kFounds) ++farthest;
    if (farthest == chunk) break;
    auto best = rank(farthest, nearest[farthest]);
    for (int64_t p = farthest + 1; p < chunk; ++p) {
      const auto own = rank(p, nearest[p]);
      const bool better = (write.assignment[p] != kFounds) & (own < best);
      farthest = better ? p : farthest;
      best = better ? own : best;
    }
    chosen = farthest;
  }
  number_founders(write, 0);
}

// In the founding chunk the other tokens join the nearest founder, the one with the lowest index on a tie.
void join_founders(const Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch) {
  const int64_t chunk = write.options->chunk;
  float* nearest = scratch.row.ensure(2 * chunk);
  float* similarity = nearest + chunk;
  std::fill_n(nearest, chunk, kNegativeInfinity);
  for (int64_t founder = 0; founder < chunk; ++founder) {
    if (write.assignment[founder] >= 0) continue;
    read_kernels().similarities(scratch.panels.data(), chunk, dictionary.key_dim, dictionary.pending_key(founder),
                                similarity);
    for (int64_t p = 0; p < chunk; ++p) {
      if (write.assignment[p] < 0 || !(similarity[p] > nearest[p])) continue;
      nearest[p] = similarity[p];
      write.assignment[p] = ~write.assignment[founder];
    }
  }
}

}  // namespace

void choose_centroids(const Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch) {
  const OvqOptions& options = *write.options;
  const int64_t chunk = options.chunk;
  const bool founding = dictionary.size == 0;
  const float* weights = options.weighted ? dictionary.rows.weights + dictionary.size : nullptr;
  if (founding) {
    float* panels = scratch.panels.ensure(round_up(chunk, read_kernels().panel) * dictionary.key_dim);
    read_kernels().pack_keys(dictionary.pending_key(0), dictionary.rows.key_stride, chunk, dictionary.key_dim, panels);
  }
  const float* similarity = dictionary.rows.best_similarity;
  const int32_t* nearest = founding ? nullptr : dictionary.rows.best_centroid;
  if (options.new_centroids == NewCentroids::random) {
    found_first(write, dictionary.size, scratch, nearest, [&](int64_t p) {
      return std::bit_cast<int64_t>(random_rank(options.seed, write.kv_head, write.chunk, p) ^ (uint64_t{1} << 63));
    });
  } else if (founding && options.weighted) {
    found_farthest_first(dictionary, write, scratch, std::max_element(weights, weights + chunk) - weights,
                         [&](int64_t p, float nearest) { return FounderRank(weights[p], nearest); });
  } else if (founding) {
    found_farthest_first(dictionary, write, scratch, 0, [](int64_t, float nearest) { return nearest; });
  } else if (options.weighted) {
    found_first(write, dictionary.size, scratch, nearest,
                [&](int64_t p) { return FounderRank(weights[p], similarity[p]).order(); });
  } else {
    found_first(write, dictionary.size, scratch, nearest, [&](int64_t p) { return int64_t{ordered(similarity[p])}; });
  }
  if (founding) join_founders(dictionary, write, scratch);
}

}  // namespace detail
}  // namespace ovq::kernels
