// Decode, one token at a time. A step reads the whole dictionary once, so it is compared with a plain read of the same
// bytes. Many states take turns, so that each step finds its dictionary out of cache. States with bfloat16 dictionaries
// alternate with the same in float32.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/check.h"
#include "bench/machine.h"
#include "bench/probe.h"
#include "bench/tensor.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"

namespace ovq::bench {
namespace {

using kernels::OvqOptions;
using kernels::OvqState;
using kernels::StateDtype;

const Shape kToken{.heads = 6, .dim = 128, .time = 1};

OvqState prefilled(const OvqOptions& options, StateDtype dtype) {
  const Shape shape{.heads = kToken.heads, .dim = kToken.dim, .time = options.centroids};
  const Inputs tensors(shape, 5);
  const Tensor o(shape);
  OvqState state({.batch = 1, .kv_heads = shape.heads, .key_dim = shape.dim, .value_dim = shape.dim}, options, dtype);
  kernels::ovq_attention_forward(
      {.q = tensors.q.view(), .k = tensors.k.view(), .v = tensors.v.view(), .beta = tensors.beta, .options = options},
      {.o = o.view()}, std::span(&state, 1));
  return state;
}

// The memory that a step reads: keys and values of centroids and pending tokens, head by head.
std::vector<std::span<const float>> memory_of_step(const OvqState& state) {
  std::vector<std::span<const float>> blocks;
  const auto add = [&]<class T>(const kernels::View<const T>& rows) {
    if (rows.time == 0) return;
    const int64_t bytes = ((rows.time - 1) * rows.time_stride + rows.dim) * static_cast<int64_t>(sizeof(T));
    for (int64_t h = 0; h < rows.heads; ++h) {
      blocks.emplace_back(reinterpret_cast<const float*>(rows.row(0, 0, h)), bytes / sizeof(float));
    }
  };
  if (state.dtype() == StateDtype::bfloat16) {
    add(state.narrow_keys());
    add(state.narrow_values());
  } else {
    add(state.keys());
    add(state.values());
  }
  add(state.pending_keys());
  add(state.pending_values());
  return blocks;
}

struct ChunkTimes {
  std::vector<std::vector<double>> steps;  // [position in the chunk][state]
  std::vector<double> reads;               // plain reads of the same memory, one after every step

  std::vector<double> all_steps() const {
    std::vector<double> all;
    for (const auto& position : steps) all.insert(all.end(), position.begin(), position.end());
    return all;
  }
};

using TimesByDtype = std::map<StateDtype, ChunkTimes>;

// One chunk of every state, token by token in turns. Each step is followed by a plain read for the state whose turn is
// farthest away. Steps and reads thus see the same load from other processes, and neither finds its memory in cache.
TimesByDtype decode_chunk(std::span<OvqState> states, const OvqOptions& options, uint64_t seed) {
  const Inputs tensors({.heads = kToken.heads, .dim = kToken.dim, .time = options.chunk}, seed);
  const Tensor o(kToken);
  TimesByDtype by_dtype;
  for (const OvqState& state : states) by_dtype[state.dtype()].steps.resize(options.chunk);
  for (int64_t t = 0; t < options.chunk; ++t) {
    const kernels::OvqInputs token{.q = tensors.q.slice(t, 1),
                                   .k = tensors.k.slice(t, 1),
                                   .v = tensors.v.slice(t, 1),
                                   .beta = tensors.beta,
                                   .options = options};
    for (size_t i = 0; i < states.size(); ++i) {
      ChunkTimes& times = by_dtype[states[i].dtype()];
      times.steps[t].push_back(
          time_once([&] { kernels::ovq_attention_forward(token, {.o = o.view()}, std::span(&states[i], 1)); }));
      const OvqState& far = states[(i + states.size() / 4 * 2) % states.size()];  // of the same dtype
      times.reads.push_back(read_seconds(memory_of_step(far), kernels::max_threads()));
    }
  }
  return by_dtype;
}

double dictionary_bytes(const OvqState& state) {
  const size_t element = state.dtype() == StateDtype::bfloat16 ? sizeof(kernels::Bfloat16) : sizeof(float);
  return static_cast<double>(state.size() * kToken.heads * 2 * kToken.dim) * static_cast<double>(element);
}

// With bfloat16, every second state is float32.
CaseResult measure(const OvqOptions& options, StateDtype dtype, bool quick) {
  const OvqState first = prefilled(options, dtype);
  const double bytes = dictionary_bytes(first);
  const auto enough = static_cast<int64_t>(6.0 * static_cast<double>(describe_machine().last_level_cache) / bytes) + 1;
  std::vector<OvqState> states(std::max<int64_t>(quick ? 12 : 16, enough + enough % 2), first);
  for (size_t i = 1; dtype != StateDtype::float32 && i < states.size(); i += 2) {
    states[i] = prefilled(options, StateDtype::float32);
  }

  decode_chunk(states, options, 6);  // allocates the room for pending tokens
  const int64_t allocated = bytes_allocated([&] { decode_chunk(std::span(states).first(1), options, 7); });
  decode_chunk(std::span(states).subspan(1), options, 7);
  const TimesByDtype by_dtype = decode_chunk(states, options, 8);
  const ChunkTimes& times = by_dtype.at(dtype);

  const std::vector<double> all = times.all_steps();
  double slowest_position =
      0;  // the median over the states keeps a stray interruption from being taken for the chunk's write
  for (const auto& position : times.steps) slowest_position = std::max(slowest_position, median(position));

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
  if (dtype != StateDtype::float32) {
    const Timing wide = summary(by_dtype.at(StateDtype::float32).all_steps());
    result.figures.push_back({"median float32 step / median step", wide.median / steps.median, "x"});
    result.figures.push_back({"fastest float32 step / fastest step", wide.best / steps.best, "x"});
  }
  return result;
}

}  // namespace

void run_decode_case(Runner& runner) {
  const OvqOptions options{.chunk = 128, .centroids = 2048, .growth = kernels::Growth::all};
  // A dictionary that is full early, so that the short check searches too.
  const OvqOptions checked{.chunk = 128, .centroids = 200, .growth = kernels::Growth::all};
  const Shape short_run{.heads = kToken.heads, .dim = kToken.dim, .time = 3 * options.chunk + 5};
  const std::string name =
      fmt::format("ovq decode one token H{} d{} L{} n{}", kToken.heads, kToken.dim, options.chunk, options.centroids);
  runner.run(
      name, [&] { check_ovq_decode(short_run, checked); },
      [&] { return measure(options, StateDtype::float32, runner.quick()); });
  runner.run(
      name + " bfloat16", [&] { check_ovq_rounded_decode(short_run, checked); },
      [&] { return measure(options, StateDtype::bfloat16, runner.quick()); });
}

}  // namespace ovq::bench
