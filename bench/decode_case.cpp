// Decode, one token at a time. A step reads the whole dictionary once, so the yardstick is how fast the same bytes can
// be read. The states take turns, so that each finds its dictionary out of cache.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/cases.h"
#include "bench/check.h"
#include "bench/machine.h"
#include "bench/probe.h"
#include "bench/tensor.h"
#include "ovq/kernels/ovq_attention.h"
#include "ovq/kernels/parallel.h"

namespace ovq::bench {
namespace {

using kernels::OvqOptions;
using kernels::OvqState;

const Shape kToken{.heads = 6, .dim = 128, .time = 1};

OvqState prefilled(const OvqOptions& options) {
  const Shape shape{.heads = kToken.heads, .dim = kToken.dim, .time = options.centroids};
  const Inputs tensors(shape, 5);
  const Tensor o(shape);
  OvqState state({.batch = 1, .kv_heads = shape.heads, .key_dim = shape.dim, .value_dim = shape.dim}, options);
  kernels::ovq_attention_forward(
      {.q = tensors.q.view(), .k = tensors.k.view(), .v = tensors.v.view(), .beta = tensors.beta, .options = options},
      {.o = o.view()}, std::span(&state, 1));
  return state;
}

// One chunk of every state, token by token in turns; times[position in the chunk][state].
std::vector<std::vector<double>> decode_chunk(std::span<OvqState> states, const OvqOptions& options, uint64_t seed) {
  const Inputs tensors({.heads = kToken.heads, .dim = kToken.dim, .time = options.chunk}, seed);
  const Tensor o(kToken);
  std::vector<std::vector<double>> times(options.chunk);
  for (int64_t t = 0; t < options.chunk; ++t) {
    const kernels::OvqInputs token{.q = tensors.q.slice(t, 1),
                                   .k = tensors.k.slice(t, 1),
                                   .v = tensors.v.slice(t, 1),
                                   .beta = tensors.beta,
                                   .options = options};
    for (OvqState& state : states)
      times[t].push_back(
          time_once([&] { kernels::ovq_attention_forward(token, {.o = o.view()}, std::span(&state, 1)); }));
  }
  return times;
}

// The dictionary's keys and values as they lie in memory, head by head.
std::vector<std::span<const float>> dictionary_memory(std::span<const OvqState> states) {
  std::vector<std::span<const float>> blocks;
  for (const OvqState& state : states) {
    for (const auto& rows : {state.keys(), state.values()}) {
      const int64_t floats = (rows.time - 1) * rows.time_stride + rows.dim;
      for (int64_t h = 0; h < rows.heads; ++h) blocks.emplace_back(rows.row(0, 0, h), floats);
    }
  }
  return blocks;
}

// The plain read as the steps are timed: one state after another, the median of all.
double median_read_bandwidth(std::span<const OvqState> states, int rounds) {
  std::vector<double> bandwidths;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < states.size(); ++i) {
      bandwidths.push_back(measure_read_bandwidth(dictionary_memory(states.subspan(i, 1)), kernels::max_threads(), 1));
    }
  }
  return median(bandwidths);
}

CaseResult measure(const OvqOptions& options, bool quick) {
  const OvqState first = prefilled(options);
  const double bytes = static_cast<double>(first.size() * kToken.heads * 2 * kToken.dim) * sizeof(float);
  const auto enough = static_cast<int64_t>(6.0 * static_cast<double>(describe_machine().last_level_cache) / bytes) + 1;
  std::vector<OvqState> states(std::max<int64_t>(quick ? 12 : 16, enough), first);

  decode_chunk(states, options, 6);  // room for pending tokens is made here
  const int64_t allocated = bytes_allocated([&] { decode_chunk(std::span(states).first(1), options, 7); });
  decode_chunk(std::span(states).subspan(1), options, 7);
  const auto times = decode_chunk(states, options, 8);

  std::vector<double> all;
  double slowest_position =
      0;  // the median over the states keeps a stray interruption from being taken for the chunk's write
  for (const auto& position : times) {
    all.insert(all.end(), position.begin(), position.end());
    slowest_position = std::max(slowest_position, median(position));
  }
  const double bandwidth = median_read_bandwidth(states, quick ? 5 : 20);
  const double best_bandwidth =
      measure_read_bandwidth(dictionary_memory(states), kernels::max_threads(), quick ? 5 : 20);

  CaseResult result{.timing = summary(all), .bytes_allocated = allocated};
  const double typical = result.timing.median;
  result.figures = {
      {"states taking turns", static_cast<double>(states.size()), ""},
      {"dictionary", bytes, "bytes"},
      {"dictionary / median step", bytes / typical, "bytes/s"},
      {"plain read of the same memory, median of single states", bandwidth, "bytes/s"},
      {"share of that", 100 * bytes / typical / bandwidth, "%"},
      {"plain read of all states, best of several", best_bandwidth, "bytes/s"},
      {"fastest step / that", 100 * bytes / *std::min_element(all.begin(), all.end()) / best_bandwidth, "%"},
      {"slowest position of the chunk / median", slowest_position / typical, "x"},
      {"slowest single step / median", *std::max_element(all.begin(), all.end()) / typical, "x"},
  };
  return result;
}

}  // namespace

void run_decode_case(Runner& runner) {
  const OvqOptions options{.chunk = 128, .centroids = 2048, .growth = kernels::Growth::all};
  // A dictionary that is full early, so that the short check searches too.
  const OvqOptions checked{.chunk = 128, .centroids = 200, .growth = kernels::Growth::all};
  runner.run(
      fmt::format("ovq decode one token H{} d{} L{} n{}", kToken.heads, kToken.dim, options.chunk, options.centroids),
      [&] { check_ovq_decode({.heads = kToken.heads, .dim = kToken.dim, .time = 3 * options.chunk + 5}, checked); },
      [&] { return measure(options, runner.quick()); });
}

}  // namespace ovq::bench
