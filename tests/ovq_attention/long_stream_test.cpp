// One state reads a very long stream: memory must not grow, results must not drift. 200,000 tokens; OVQ_STREAM_TOKENS
// sets another number (10,000,000 take about a minute).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "ovq/base/random.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::kernels::test {
namespace {

constexpr int64_t kHeads = 2, kDim = 16, kPiece = 4096;

int64_t stream_tokens() {
  const char* tokens = std::getenv("OVQ_STREAM_TOKENS");
  return tokens == nullptr ? 200'000 : std::stoll(tokens);
}

// The resident memory of the program; 0 if the system does not report it.
int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmRSS:") continue;
    int64_t kilobytes = 0;
    status >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

struct Piece {
  explicit Piece(int64_t tokens) : k(tokens * kHeads * kDim), v(k.size()), o(k.size()), weights(tokens * kHeads) {}

  // Keys of unit norm around sixteen directions that change slowly; values within [-1, 1].
  void draw(Random& random, int64_t first) {
    for (size_t row = 0; row < weights.size(); ++row) {
      const double phase = static_cast<double>(first) / 1e6 + static_cast<double>(random.below(16));
      double square = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        const double x = std::sin(phase * static_cast<double>(i + 1)) + 0.3 * (random.uniform() - 0.5);
        k[row * kDim + i] = static_cast<float>(x);
        v[row * kDim + i] = static_cast<float>(2 * random.uniform() - 1);
        square += x * x;
      }
      for (int64_t i = 0; i < kDim; ++i) k[row * kDim + i] /= static_cast<float>(std::sqrt(square));
      weights[row] = static_cast<float>(random.uniform());
    }
  }

  std::vector<float> k, v, o, weights;
};

void expect_steady(const OvqOptions& options) {
  OvqState state({.batch = 1, .kv_heads = kHeads, .key_dim = kDim, .value_dim = kDim}, options);
  const std::vector<float> beta(kHeads, 16.0f);
  Piece piece(kPiece);
  Random random(7);
  const int64_t tokens = stream_tokens() / kPiece * kPiece;
  int64_t early_bytes = 0, early_resident = 0;
  double total_weight[kHeads] = {};
  for (int64_t first = 0; first < tokens; first += kPiece) {
    piece.draw(random, first);
    const auto view = [&](std::vector<float>& x, int64_t dim) {
      return View<float>::contiguous(x.data(), 1, kPiece, kHeads, dim);
    };
    ovq_attention_forward({.q = view(piece.k, kDim),
                           .k = view(piece.k, kDim),
                           .v = view(piece.v, kDim),
                           .beta = beta,
                           .weights = options.weighted ? view(piece.weights, 1) : View<float>{},
                           .options = options},
                          {.o = view(piece.o, kDim)}, std::span(&state, 1));
    for (size_t i = 0; i < piece.weights.size(); ++i) total_weight[i % kHeads] += piece.weights[i];
    for (const float x : piece.o) ASSERT_LE(std::abs(x), 1.0f + 1e-5f) << "at token " << first;  // of means of values
    if (first / kPiece == tokens / kPiece / 2) {
      early_bytes = state.nbytes();
      early_resident = resident_bytes();
    }
  }
  EXPECT_EQ(state.position(), tokens);
  EXPECT_LE(state.size(), options.centroids);
  EXPECT_EQ(state.size(), target_size(options, tokens));
  // The dictionary's last few centroids are added late: memory grows only with them.
  EXPECT_LE(state.nbytes(), early_bytes + early_bytes / 10);
  EXPECT_LE(resident_bytes(), early_resident + (4 << 20));
  for (int64_t head = 0; head < kHeads; ++head) {
    if (options.weighted) {
      double sum = 0;
      for (int64_t row = 0; row < state.size(); ++row) sum += *state.real_counts().row(0, row, head);
      EXPECT_NEAR(sum, total_weight[head], 1e-3 * total_weight[head]) << "counts are float32";
    } else {
      const auto counts = state.counts(0, head);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), tokens);
    }
    for (int64_t row = 0; row < state.size(); ++row) {
      double key = 0, value = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        key += std::pow(state.keys().row(0, row, head)[i], 2);
        value = std::max(value, std::abs(static_cast<double>(state.values().row(0, row, head)[i])));
      }
      ASSERT_LE(std::sqrt(key), 1.0 + 1e-4) << "a mean of keys of norm 1";
      ASSERT_GT(key, 0.0);
      ASSERT_LE(value, 1.0 + 1e-4) << "a mean of values within [-1, 1]";
    }
  }
}

TEST(LongStream, CountsAndNormsHold) { expect_steady({.chunk = 64, .centroids = 256}); }

TEST(LongStream, WeightedCountsAndNormsHold) { expect_steady({.chunk = 64, .centroids = 256, .weighted = true}); }

}  // namespace
}  // namespace ovq::kernels::test
