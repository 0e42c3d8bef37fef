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

// What a step reads, keys and values of centroids and pending tokens, as it lies in memory, head by head.
std::vector<std::span<const float>> memory_of_step(const OvqState& state) {
  std::vector<std::span<const float>> blocks;
  for (const auto& rows : {state.keys(), state.values(), state.pending_keys(), state.pending_values()}) {
    if (rows.time == 0) continue;
    const int64_t floats = (rows.time - 1) * rows.time_stride + rows.dim;
    for (int64_t h = 0; h < rows.heads; ++h) blocks.emplace_back(rows.row(0, 0, h), floats);
  }
  return blocks;
}

struct ChunkTimes {
  std::vector<std::vector<double>> steps;  // [position in the chunk][state]
  std::vector<double> reads;               // plain ones of what a step reads, one after every step
};

// One chunk of every state, token by token in turns. Each step is followed by a plain read for the state that is
// farthest from its turn: steps and reads meet the same neighbours, and neither finds its memory in cache.
ChunkTimes decode_chunk(std::span<OvqState> states, const OvqOptions& options, uint64_t seed) {
  const Inputs tensors({.heads = kToken.heads, .dim = kToken.dim, .time = options.chunk}, seed);
  const Tensor o(kToken);
  ChunkTimes times{.steps = std::vector<std::vector<double>>(options.chunk)};
  for (int64_t t = 0; t < options.chunk; ++t) {
    const kernels::OvqInputs token{.q = tensors.q.slice(t, 1),
                                   .k = tensors.k.slice(t, 1),
                                   .v = tensors.v.slice(t, 1),
                                   .beta = tensors.beta,
                                   .options = options};
    for (size_t i = 0; i < states.size(); ++i) {
      times.steps[t].push_back(
          time_once([&] { kernels::ovq_attention_forward(token, {.o = o.view()}, std::span(&states[i], 1)); }));
      const OvqState& far = states[(i + states.size() / 2) % states.size()];
      times.reads.push_back(read_seconds(memory_of_step(far), kernels::max_threads()));
    }
  }
  return times;
}

CaseResult measure(const OvqOptions& options, bool quick) {
  const OvqState first = prefilled(options);
  const double bytes = static_cast<double>(first.size() * kToken.heads * 2 * kToken.dim) * sizeof(float);
  const auto enough = static_cast<int64_t>(6.0 * static_cast<double>(describe_machine().last_level_cache) / bytes) + 1;
  std::vector<OvqState> states(std::max<int64_t>(quick ? 12 : 16, enough), first);

  decode_chunk(states, options, 6);  // room for pending tokens is made here
  const int64_t allocated = bytes_allocated([&] { decode_chunk(std::span(states).first(1), options, 7); });
  decode_chunk(std::span(states).subspan(1), options, 7);
  const ChunkTimes times = decode_chunk(states, options, 8);

  std::vector<double> all;
  double slowest_position =
      0;  // the median over the states keeps a stray interruption from being taken for the chunk's write
  for (const auto& position : times.steps) {
    all.insert(all.end(), position.begin(), position.end());
    slowest_position = std::max(slowest_position, median(position));
  }

  CaseResult result{.timing = summary(all), .bytes_allocated = allocated};
  const Timing reads = summary(times.reads);
  const Timing& steps = result.timing;
  result.figures = {
      {"states taking turns", static_cast<double>(states.size()), ""},
      {"dictionary", bytes, "bytes"},
      {"dictionary / median step", bytes / steps.median, "bytes/s"},
      {"dictionary / median plain read of the same memory", bytes / reads.median, "bytes/s"},
      {"share of that", 100 * reads.median / steps.median, "%"},
      {"fastest plain read / fastest step", 100 * reads.best / steps.best, "%"},
      {"slowest position of the chunk / median", slowest_position / steps.median, "x"},
      {"slowest single step / median", *std::max_element(all.begin(), all.end()) / steps.median, "x"},
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
