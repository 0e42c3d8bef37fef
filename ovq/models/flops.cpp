#include "ovq/models/flops.h"

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq::models {
namespace {

struct Heads {
  double query, kv, dim;
};

// As AttentionHeads completes them.
Heads heads_of(const nn::HeadOptions& o) {
  const int64_t dim = o.head_dim == 0 ? o.width / o.heads : o.head_dim;
  return {static_cast<double>(o.heads), static_cast<double>(o.kv_heads == 0 ? o.heads : o.kv_heads),
          static_cast<double>(dim)};
}

// body(N_c, tokens) for each chunk of the context
template <class Body>
void for_each_chunk(const kernels::OvqOptions& options, int64_t context, Body&& body) {
  int64_t size = 0;
  for (int64_t first = 0; first < context; first += options.chunk) {
    body(static_cast<double>(size), static_cast<double>(std::min(options.chunk, context - first)));
    size = kernels::size_after(options, size, first, options.chunk);
  }
}

// Keys that a query sees, on average.
double visible(double context, double window) {
  if (window == 0 || window >= context) return context / 2;
  return window - window * window / (2 * context);
}

ExecutedFlops executed(const nn::AttentionOptions& o, double context) {
  const Heads heads = heads_of(o.heads);
  const double keys = heads.query * heads.dim * visible(context, static_cast<double>(o.window));
  return {4 * keys, 10 * keys};
}

ExecutedFlops executed(const nn::OvqAttentionOptions& o, double context) {
  const Heads heads = heads_of(o.heads);
  const double chunk = static_cast<double>(o.dictionary.chunk);
  ExecutedFlops sum;
  bool first = true;
  for_each_chunk(o.dictionary, static_cast<int64_t>(context), [&](double centroids, double tokens) {
    // Rows that all queries see, and the chunk, of which a query sees half on average.
    const double rows = centroids + (o.dictionary.rope && !first ? chunk : 0);
    sum.forward += tokens * heads.dim * (heads.query * (4 * rows + 2 * chunk) + heads.kv * 2 * centroids);
    sum.backward += tokens * heads.dim * heads.query * (10 * rows + 5 * chunk);
    first = false;
  });
  return {sum.forward / context, sum.backward / context};
}

ExecutedFlops executed(const nn::VqAttentionOptions& o, double context) {
  const Heads heads = heads_of(o.heads);
  const double keys = heads.query * heads.dim * visible(context, 0), codewords = static_cast<double>(o.codewords);
  const double searches = o.training == nn::CodebookTraining::sf_diveq ? 2 : 1;
  return {4 * keys + searches * 2 * codewords * heads.kv * heads.dim, 10 * keys};
}

// Linear recurrences by chunks, one head.
struct ChunkForm {
  double chunk, keys, values;

  ExecutedFlops linear() const {
    return {4 * keys * values + 2 * chunk * (keys + values), 8 * keys * values + chunk * (6 * keys + 4 * values)};
  }
};

ExecutedFlops times(double heads, const ExecutedFlops& flops) {
  return {heads * flops.forward, heads * flops.backward};
}

// Tokens of a chunk in the formulas of flops.h. A context shorter than a chunk is one chunk.
constexpr double kRecurrenceChunk = 64;
double recurrence_chunk(double context) { return std::min(kRecurrenceChunk, context); }

ExecutedFlops executed(const nn::LinearAttentionMixerOptions& o, double context) {
  const ChunkForm form{recurrence_chunk(context), static_cast<double>(o.key_dim), static_cast<double>(o.value_dim)};
  return times(static_cast<double>(o.heads), form.linear());
}

ExecutedFlops executed(const nn::Mamba2Options& o, double context) {
  const int64_t heads = o.heads == 0 ? o.expand * o.width / o.head_dim : o.heads;
  const ChunkForm form{recurrence_chunk(context), static_cast<double>(o.state), static_cast<double>(o.head_dim)};
  return times(static_cast<double>(heads), form.linear());
}

ExecutedFlops executed(const nn::GatedDeltaNetOptions& o, double context) {
  const double keys = static_cast<double>(o.key_dim), values = static_cast<double>(o.value_dim);
  const double chunk = recurrence_chunk(context);
  return times(static_cast<double>(o.heads), {6 * keys * values + chunk * (6 * keys + 4 * values) + chunk * chunk,
                                              12 * keys * values + chunk * (16 * keys + 8 * values)});
}

ExecutedFlops executed(const nn::MesaNetOptions& o, double context) {
  const double keys = static_cast<double>(o.key_dim), values = static_cast<double>(o.value_dim);
  const double chunk = recurrence_chunk(context);
  const double solve = static_cast<double>(o.iterations) * (2 * keys * keys + 4 * chunk * keys);
  const double read = 2 * keys * values + 2 * chunk * (keys + values);
  return times(static_cast<double>(o.heads), {2 * keys * (keys + values) + read + solve,
                                              ChunkForm{chunk, keys, keys + values}.linear().backward + read + solve});
}

}  // namespace

ExecutedFlops executed_flops(const MixerOptions& options, int64_t context) {
  check(context >= 1, "inspect", "context is ", context, "; must be at least 1");
  return std::visit([&](const auto& o) { return executed(o, static_cast<double>(context)); }, options);
}

std::optional<PaperFlops> paper_flops(const MixerOptions& options, int64_t context) {
  check(context >= 1, "inspect", "context is ", context, "; must be at least 1");
  const double length = static_cast<double>(context);
  if (const auto* o = std::get_if<nn::AttentionOptions>(&options); o != nullptr && o->window == 0) {
    const Heads heads = heads_of(o->heads);
    return PaperFlops{heads.query * length * heads.dim, 3 * heads.query * length * heads.dim};
  }
  if (const auto* o = std::get_if<nn::OvqAttentionOptions>(&options)) {
    const Heads heads = heads_of(o->heads);
    const double chunk = static_cast<double>(o->dictionary.chunk);
    PaperFlops sum;
    for_each_chunk(o->dictionary, context, [&](double centroids, double tokens) {
      sum.inference += heads.query * tokens * heads.dim * (6 * centroids + 2 * chunk);
      sum.training += heads.query * tokens * heads.dim * (12 * centroids + 6 * chunk);
    });
    return PaperFlops{sum.inference / length, sum.training / length};
  }
  if (const auto* o = std::get_if<nn::GatedDeltaNetOptions>(&options)) {
    const double d = static_cast<double>(o->key_dim), chunk = kRecurrenceChunk;
    const double head = 6 * d * d + (6 * d * d + 10 * chunk * d + chunk * chunk / 3);
    return PaperFlops{static_cast<double>(o->heads) * head, 3 * static_cast<double>(o->heads) * head};
  }
  return {};
}

}  // namespace ovq::models
