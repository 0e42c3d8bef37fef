// Checks assignments against the rules for writing a chunk: exactly in form, within a tolerance in the similarity of
// the chosen centroids.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {

inline constexpr double kChoiceTolerance = 1e-5;

// Whether every written token has an existing centroid, the number of founders matches the size, founders are numbered
// by position, and the rest is kUnassigned.
inline testing::AssertionResult valid_assignments(const OvqInputs& inputs, std::span<const OvqState> states,
                                                  std::span<const int32_t> assignments) {
  const OvqOptions& options = inputs.options;
  const int64_t chunk = options.chunk, kv_heads = inputs.k.heads;
  for (const Sequence& sequence : sequences_of(inputs, states)) {
    const int64_t length = sequence.pending() + sequence.tokens;
    const int64_t first = sequence.state ? sequence.state->position() - sequence.pending() : 0;
    const int64_t position = first + length;
    const int64_t written =
        options.rope ? std::max<int64_t>(position / chunk - 1, 0) * chunk : position / chunk * chunk;
    for (int64_t h = 0; h < kv_heads; ++h) {
      const auto at = [&](int64_t t) { return assignments[sequence.assignments_first + t * kv_heads + h]; };
      int64_t size = sequence.state ? sequence.state->size() : 0;
      int64_t t = 0;
      for (; first + t < written; t += chunk) {
        const int64_t founders = reference::founder_count(options, size, (first + t) / chunk);
        const int64_t joinable = size > 0 ? size : founders;
        int64_t next = size;
        for (int64_t i = t; i < t + chunk; ++i) {
          const int32_t a = at(i);
          if (a < 0 ? ~a != next++ : a >= joinable) {
            return testing::AssertionFailure() << "token " << i << ", head " << h << ": assignment " << a << " with "
                                               << size << " centroids and " << founders << " new ones";
          }
        }
        if (next != size + founders) {
          return testing::AssertionFailure() << "chunk of token " << t << ", head " << h << ": " << next - size
                                             << " founders; " << founders << " expected";
        }
        size = next;
      }
      for (; t < length; ++t) {
        if (at(t) != kUnassigned) {
          return testing::AssertionFailure()
                 << "token " << t << ", head " << h << ": assignment " << at(t) << "; its chunk is not written yet";
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

// Replays the traversal with the given founders: each must be as far from the chosen ones as any other key.
inline testing::AssertionResult farthest_first_within(const reference::Matrix<double>& keys,
                                                      const std::vector<int64_t>& founders, double tolerance) {
  if (founders.empty() || founders[0] != 0) return testing::AssertionFailure() << "key 0 is not a founder";
  std::vector<bool> chosen(keys.rows, false);
  std::vector<double> largest(keys.rows, -std::numeric_limits<double>::infinity());
  int64_t next = 0;
  for (size_t step = 1; step < founders.size(); ++step) {
    chosen[next] = true;
    double smallest = std::numeric_limits<double>::infinity();
    for (int64_t t = 0; t < keys.rows; ++t) {
      largest[t] = std::max(largest[t], reference::similarity(keys[t], keys[next], keys.columns));
      if (!chosen[t]) smallest = std::min(smallest, largest[t]);
    }
    next = -1;
    for (int64_t t : founders) {
      if (!chosen[t] && (next < 0 || largest[t] < largest[next])) next = t;
    }
    if (!(largest[next] <= smallest + tolerance)) {
      return testing::AssertionFailure() << "founder " << next << " has similarity " << largest[next]
                                         << " to those before; another key has " << smallest;
    }
  }
  return testing::AssertionSuccess();
}

// The same with weights: the first founder is the heaviest key, and each later one scores w (1 - s) as high as any.
inline testing::AssertionResult farthest_first_within(const reference::Matrix<double>& keys,
                                                      const std::vector<double>& weights,
                                                      const std::vector<int64_t>& founders, double tolerance) {
  const auto score = [&](int64_t t, double similarity) {
    return reference::FounderScore<double>(weights[t], similarity).score;
  };
  std::vector<bool> chosen(keys.rows, false);
  std::vector<double> largest(keys.rows, -std::numeric_limits<double>::infinity());
  int64_t next = std::max_element(weights.begin(), weights.end()) - weights.begin();
  if (std::find(founders.begin(), founders.end(), next) == founders.end()) {
    return testing::AssertionFailure() << "the heaviest key, " << next << ", is not a founder";
  }
  for (size_t step = 1; step < founders.size(); ++step) {
    chosen[next] = true;
    double best = 0;
    for (int64_t t = 0; t < keys.rows; ++t) {
      largest[t] = std::max(largest[t], reference::similarity(keys[t], keys[next], keys.columns));
      if (!chosen[t]) best = std::max(best, score(t, largest[t]));
    }
    next = -1;
    for (int64_t t : founders) {
      if (!chosen[t] && (next < 0 || score(t, largest[t]) > score(next, largest[next]))) next = t;
    }
    if (!(score(next, largest[next]) >= best - tolerance)) {
      return testing::AssertionFailure() << "founder " << next << " scores " << score(next, largest[next])
                                         << "; another key scores " << best;
    }
  }
  return testing::AssertionSuccess();
}

inline double largest_norm(const reference::Matrix<double>& rows) {
  double largest = 0;
  for (int64_t n = 0; n < rows.rows; ++n) {
    largest = std::max(largest, std::sqrt(reference::dot(rows[n], rows[n], rows.columns)));
  }
  return largest;
}

inline testing::AssertionResult optimal_chunk(const reference::OvqDictionary<double>& dictionary,
                                              const reference::OvqChunk<double>& chunk,
                                              std::span<const int32_t> assignments, const OvqOptions& options) {
  std::vector<int64_t> founders, others;
  for (int64_t t = 0; t < options.chunk; ++t) (assignments[t] < 0 ? founders : others).push_back(t);
  const double key_norm = largest_norm(chunk.keys);
  const double tolerance = kChoiceTolerance * key_norm * std::max(key_norm, largest_norm(dictionary.keys));

  if (options.new_centroids == NewCentroids::random) {
    if (founders != reference::choose_founders(dictionary, chunk, options)) {
      return testing::AssertionFailure() << "founders are not those of the random ranks";
    }
  } else if (dictionary.size() == 0) {
    const auto result = options.weighted ? farthest_first_within(chunk.keys, chunk.weights, founders, tolerance)
                                         : farthest_first_within(chunk.keys, founders, tolerance);
    if (!result) return result;
  } else if (options.weighted) {
    const auto score = [&](int64_t t) {
      return reference::FounderScore<double>(chunk.weights[t],
                                             reference::nearest(chunk.keys[t], dictionary.keys).similarity)
          .score;
    };
    double limit = 0;
    for (int64_t t : others) limit = std::max(limit, score(t));
    for (int64_t t : founders) {
      if (!(score(t) >= limit - tolerance * std::max(1.0, chunk.weights[t]))) {
        return testing::AssertionFailure()
               << "founder " << t << " scores " << score(t) << "; another key scores " << limit;
      }
    }
  } else {
    const auto best = [&](int64_t t) { return reference::nearest(chunk.keys[t], dictionary.keys).similarity; };
    double limit = std::numeric_limits<double>::infinity();
    for (int64_t t : others) limit = std::min(limit, best(t));
    for (int64_t t : founders) {
      if (!(best(t) <= limit + tolerance)) {
        return testing::AssertionFailure()
               << "founder " << t << " has similarity " << best(t) << "; another key has " << limit;
      }
    }
  }

  reference::Matrix<double> candidates = dictionary.keys;
  if (dictionary.size() == 0) {
    for (int64_t t : founders) candidates.append(chunk.keys[t]);
  }
  for (int64_t t : others) {
    const double similarity = reference::similarity(chunk.keys[t], candidates[assignments[t]], candidates.columns);
    const reference::Nearest<double> best = reference::nearest(chunk.keys[t], candidates);
    if (!(similarity >= best.similarity - tolerance)) {
      return testing::AssertionFailure() << "token " << t << " joined " << assignments[t] << " with similarity "
                                         << similarity << "; " << best.centroid << " has " << best.similarity;
    }
  }
  return testing::AssertionSuccess();
}

// `expected` is the plain loop with the assignments under test.
inline testing::AssertionResult optimal_choices(const OvqInputs& inputs, std::span<const OvqState> states,
                                                const OvqExpected<double>& expected) {
  size_t i = 0;
  for (const Sequence& sequence : sequences_of(inputs, states)) {
    for (int64_t h = 0; h < inputs.k.heads; ++h, ++i) {
      const reference::OvqTokens<double> tokens(
          reference::load_head<double>(inputs, sequence.batch, h, sequence.first, sequence.tokens),
          expected.initial[i]);
      const reference::OvqHeadResult<double>& result = expected.results[i];
      for (size_t c = 0; c < result.dictionaries.size(); ++c) {
        const int64_t written = tokens.written_chunk(static_cast<int64_t>(c) * inputs.options.chunk);
        if (written < 0) continue;
        const auto choice =
            optimal_chunk(result.dictionaries[c], tokens.chunk(written),
                          std::span(result.assignments).subspan(written, inputs.options.chunk), inputs.options);
        if (!choice) {
          return testing::AssertionFailure()
                 << "head " << h << ", chunk of token " << written << ": " << choice.message();
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace ovq::kernels::test
