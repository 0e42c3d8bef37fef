#include "ovq/ops/ovq_attention/dictionary.h"

#include <algorithm>
#include <cstring>

#include "ovq/core/small_rows.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/ovq_attention/members.h"
#include "ovq/ops/ovq_attention/value_norms.h"

namespace ovq::kernels::detail {

void UndoLog::reserve(int64_t rows_overwritten, int64_t rows_written, const Dictionary& dictionary,
                      const OvqOptions& options) {
  entries = norms = 0;
  centroid.ensure(rows_overwritten);
  rows.ensure(rows_overwritten * (dictionary.key_dim + dictionary.value_dim));
  if (options.normalize) norm.ensure(rows_written);
  if (options.weighted) count.ensure(rows_overwritten);
  if (options.value_norms) shrinkage.ensure(rows_overwritten);
}

namespace {

// row <- row / |row|; returns |row|. A zero row stays zero.
float normalize_row(float* row, int64_t dim) {
  const float norm = norm_of(row, dim);
  if (norm > 0.0f) {
    for (int64_t i = 0; i < dim; ++i) row[i] /= norm;
  }
  return norm;
}

float update_rate(const OvqOptions& options, float count_after) {
  return options.rate ? *options.rate : 1.0f / count_after;
}

// Below it 1 / count may overflow and products with weights lose digits. Scaling by a power of two keeps all bits.
constexpr float kTinyCount = 0x1p-100f, kTinyScale = 0x1p100f;

// A centroid's row in float32 while it is being written.
struct OpenRow {
  float *key, *value;
};

// The row itself or, if stored as bfloat16, a copy in float32.
OpenRow open_row(const Dictionary& dictionary, int64_t centroid, WriteScratch& scratch) {
  if (!dictionary.rows.narrow) return {dictionary.key(centroid), dictionary.value(centroid)};
  float* wide = scratch.wide.ensure(dictionary.key_dim + dictionary.value_dim);
  const OpenRow row = {wide, wide + dictionary.key_dim};
  widen_row(dictionary.narrow_key(centroid), dictionary.key_dim, row.key);
  widen_row(dictionary.narrow_value(centroid), dictionary.value_dim, row.value);
  return row;
}

// Stores the row, which may be the founder's own, in the centroid's place.
void store_row(const Dictionary& dictionary, int64_t centroid, const OpenRow& row) {
  if (dictionary.rows.narrow) {
    narrow_row(row.key, dictionary.key_dim, dictionary.narrow_key(centroid));
    narrow_row(row.value, dictionary.value_dim, dictionary.narrow_value(centroid));
  } else if (row.key != dictionary.key(centroid)) {
    copy_row(row.key, dictionary.key_dim, dictionary.key(centroid));
    copy_row(row.value, dictionary.value_dim, dictionary.value(centroid));
  }
}

// write_chunk; `weight_of` maps the position of a token in the chunk to its weight, 1 without weights.
template <class WeightOf>
void write_chunk_with(Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch, UndoLog* log,
                      const WeightOf& weight_of) {
  const OvqOptions& options = *write.options;
  const OvqHead& rows = dictionary.rows;
  const int64_t size = dictionary.size, chunk = options.chunk;
  const int64_t key_dim = dictionary.key_dim, value_dim = dictionary.value_dim;
  float* sum = scratch.row.ensure(std::max(key_dim, value_dim));
  const float* tokens_k = dictionary.pending_key(0);
  const float* tokens_v = dictionary.pending_value(0);
  const float* carried_k = dictionary.pending_key(chunk);
  const float* carried_v = dictionary.pending_value(chunk);
  const Members members(write, size, scratch);
  const auto log_norm = [&](float norm) {
    if (log != nullptr) log->norm[log->norms++] = norm;
  };
  const auto founder = [&](int64_t i) -> OpenRow {
    return {dictionary.pending_key(members.founder[i]), dictionary.pending_value(members.founder[i])};
  };
  const auto join = [&](int32_t centroid, int32_t member) {
    if (!options.weighted) return set_count(rows, centroid, rows.counts[centroid] + members.count(member));
    double count = rows.weights[centroid];
    for (; member != kNone; member = members.next[member]) count += weight_of(member);
    set_weight(rows, centroid, static_cast<float>(count));
  };

  for (int64_t i = 0; i < write.new_count; ++i) {
    if (options.weighted) {
      set_weight(rows, size + i, weight_of(members.founder[i]));
    } else {
      set_count(rows, size + i, 1);
    }
    if (options.value_norms) rows.shrinkage[size + i] = 1.0f;
  }
  members.for_each(write, [&](int32_t centroid, int32_t member) {
    const bool old = centroid < size;
    const auto [key, value] = old ? open_row(dictionary, centroid, scratch) : founder(centroid - size);
    if (log != nullptr && old) {
      float* entry = log->rows.data() + log->entries * (key_dim + value_dim);
      copy_row(key, key_dim, entry);
      copy_row(value, value_dim, entry + key_dim);
      if (options.weighted) log->count[log->entries] = rows.weights[centroid];
      if (options.value_norms) log->shrinkage[log->entries] = rows.shrinkage[centroid];
      log->centroid[log->entries++] = centroid;
    }
    join(centroid, member);
    const auto update = [&, key = key, value = value](float rate, const auto& weight_of) {
      update_row(key, tokens_k, rows.key_stride, members, member, rate, key_dim, sum, weight_of);
      if (options.value_norms) {
        update_value(value, rows.shrinkage[centroid], tokens_v, rows.value_stride, members, member, rate, value_dim,
                     sum, weight_of);
      } else {
        update_row(value, tokens_v, rows.value_stride, members, member, rate, value_dim, sum, weight_of);
      }
    };
    const float count = count_of(rows, centroid);
    if (count < kTinyCount) {
      update(1.0f / (kTinyScale * count), [&](int32_t p) { return kTinyScale * weight_of(p); });
    } else {
      update(update_rate(options, count), weight_of);
    }
    if (!old) return;
    if (options.normalize) log_norm(normalize_row(key, key_dim));
    store_row(dictionary, centroid, {key, value});
  });

  for (int64_t i = 0; i < write.new_count; ++i) {
    const OpenRow row = founder(i);
    if (options.normalize) log_norm(normalize_row(row.key, key_dim));
    store_row(dictionary, size + i, row);
  }
  dictionary.size += write.new_count;
  if (write.carried > 0 && carried_k != dictionary.pending_key(0)) {
    std::memmove(dictionary.pending_key(0), carried_k, write.carried * rows.key_stride * sizeof(float));
    std::memmove(dictionary.pending_value(0), carried_v, write.carried * rows.value_stride * sizeof(float));
    for (float* per_row : {rows.weights, rows.log_counts}) {
      if (!options.weighted) break;
      std::memmove(per_row + dictionary.size, per_row + size + chunk, write.carried * sizeof(float));
    }
  }
}

}  // namespace

void write_chunk(Dictionary& dictionary, const ChunkWrite& write, WriteScratch& scratch, UndoLog* log) {
  if (!write.options->weighted) {
    return write_chunk_with(dictionary, write, scratch, log, [](int32_t) { return 1.0f; });
  }
  // A copy, because new centroids overwrite the tokens.
  const int64_t chunk = write.options->chunk;
  float* weights = scratch.weights.ensure(chunk);
  std::copy_n(dictionary.rows.weights + dictionary.size, chunk, weights);
  write_chunk_with(dictionary, write, scratch, log, [weights](int32_t p) { return weights[p]; });
}

}  // namespace ovq::kernels::detail
