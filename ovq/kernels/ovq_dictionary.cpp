#include "ovq/kernels/ovq_dictionary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ovq/kernels/simd/read_kernels.h"
#include "ovq/kernels/small_rows.h"

namespace ovq::kernels::detail {
namespace {

constexpr int32_t kNone = -1;

// The members of each centroid as chains in order of position, founders left out, and the founders' positions.
struct Members {
  int32_t* first;    // [size + new_count]
  int32_t* next;     // [chunk]
  int32_t* founder;  // [new_count]

  Members(const ChunkWrite& write, int64_t size, WriteScratch& scratch) {
    const int64_t chunk = write.options->chunk;
    const int64_t centroids = size + write.new_count;
    if (scratch.first_member.size() < centroids) {
      scratch.first_member = Buffer<int32_t>(centroids + centroids / 4 + chunk);
      std::fill_n(scratch.first_member.data(), scratch.first_member.size(), kNone);
    }
    first = scratch.first_member.data();
    next = scratch.next_member.ensure(chunk);
    founder = scratch.founder.ensure(chunk);
    for (int64_t p = chunk - 1; p >= 0; --p) {
      const int32_t a = write.assignment[p];
      if (a < 0) {
        founder[~a - size] = static_cast<int32_t>(p);
      } else {
        next[p] = first[a];
        first[a] = static_cast<int32_t>(p);
      }
    }
  }

  // f(centroid, first member) for each centroid with members, in order of their first member; leaves `first` empty
  // again.
  template <class F>
  void for_each(const ChunkWrite& write, const F& f) const {
    for (int64_t p = 0; p < write.options->chunk; ++p) {
      const int32_t a = write.assignment[p];
      if (a < 0 || first[a] != p) continue;
      f(a, static_cast<int32_t>(p));
      first[a] = kNone;
    }
  }

  int64_t count(int32_t member) const {
    int64_t members = 0;
    for (; member != kNone; member = next[member]) ++members;
    return members;
  }
};

// row <- row + rate * sum over members of w (x - row)
template <class WeightOf>
void update_row(float* row, const float* tokens, int64_t stride, const Members& members, int32_t member, float rate,
                int64_t dim, float* sum, const WeightOf& weight_of) {
  const float* first = tokens + member * stride;
  const float first_weight = weight_of(member);
  member = members.next[member];
  if (member == kNone) {  // most often
    const float weight = first_weight * rate;
    return update_row_by(first, dim, row, [=](float x, float y) { return y + weight * (x - y); });
  }
  for (int64_t i = 0; i < dim; ++i) sum[i] = first_weight * (first[i] - row[i]);
  for (; member != kNone; member = members.next[member]) {
    const float* x = tokens + member * stride;
    const float weight = weight_of(member);
    for (int64_t i = 0; i < dim; ++i) sum[i] += weight * (x[i] - row[i]);
  }
  for (int64_t i = 0; i < dim; ++i) row[i] += rate * sum[i];
}

float norm_of(const float* row, int64_t dim) {
  double squares = 0.0;
  for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
  return static_cast<float>(std::sqrt(squares));
}

// With value_norms, update_row of the mean `shrinkage` * row; the row is then that mean with the norm that its tokens
// have on average. A mean of zero stays, and its norm is forgotten.
template <class WeightOf>
void update_value(float* row, float& shrinkage, const float* tokens, int64_t stride, const Members& members,
                  int32_t member, float rate, int64_t dim, float* sum, const WeightOf& weight_of) {
  const double norm_before = norm_of(row, dim);
  double change = 0.0;
  for (int32_t p = member; p != kNone; p = members.next[p]) {
    change += weight_of(p) * (norm_of(tokens + p * stride, dim) - norm_before);
  }
  const auto norm = static_cast<float>(norm_before + rate * change);
  for (int64_t i = 0; i < dim; ++i) row[i] *= shrinkage;
  update_row(row, tokens, stride, members, member, rate, dim, sum, weight_of);
  const float mean_norm = norm_of(row, dim);
  shrinkage = 1.0f;
  if (!(norm > 0.0f) || !(mean_norm > 0.0f)) return;
  const float factor = norm / mean_norm;
  for (int64_t i = 0; i < dim; ++i) row[i] *= factor;
  shrinkage = mean_norm / norm;
}

// The gradients g of the row y and r of its shrinkage s become those of the mean and of the norm n of y:
//   g <- (g - u (u . g)) / s + u r / n,  r <- u . g - r s / n,  u = y / n
void mean_gradient(float* g, float& r, const float* y, float s, int64_t dim) {
  const double n = norm_of(y, dim);
  if (!(n > 0.0) || !(s > 0.0f)) {
    r = 0.0f;
    return;
  }
  double radial = 0.0;
  for (int64_t i = 0; i < dim; ++i) radial += static_cast<double>(y[i]) * g[i];
  radial /= n;
  const auto along = static_cast<float>((r / n - radial / s) / n);
  for (int64_t i = 0; i < dim; ++i) g[i] = g[i] / s + y[i] * along;
  r = static_cast<float>(radial - r * s / n);
}

// g <- g + d_norm x / |x|, the gradient of |x|; a zero row has none
void add_norm_gradient(float d_norm, const float* x, int64_t dim, float* g) {
  const float norm = norm_of(x, dim);
  if (d_norm == 0.0f || !(norm > 0.0f)) return;
  const float factor = d_norm / norm;
  for (int64_t i = 0; i < dim; ++i) g[i] += factor * x[i];
}

// row <- row / |row|; returns |row|. A zero row stays.
float normalize_row(float* row, int64_t dim) {
  const float norm = norm_of(row, dim);
  if (norm > 0.0f) {
    for (int64_t i = 0; i < dim; ++i) row[i] /= norm;
  }
  return norm;
}

// g <- (g - y (y . g)) / |row|, the gradient of normalize_row
void normalize_gradient(float* gradient, const float* normalized, float norm, int64_t dim) {
  if (!(norm > 0.0f)) return;
  double along = 0.0;
  for (int64_t i = 0; i < dim; ++i) along += static_cast<double>(normalized[i]) * gradient[i];
  for (int64_t i = 0; i < dim; ++i) {
    gradient[i] = (gradient[i] - normalized[i] * static_cast<float>(along)) / norm;
  }
}

// A look-up for small counts: there is one logarithm per token, with heads of 16 for little other work.
float log2_of_count(int64_t count) {
  static const auto table = [] {
    std::array<float, 1024> logarithms{};
    for (size_t i = 0; i < logarithms.size(); ++i) logarithms[i] = std::log2(static_cast<float>(i));
    return logarithms;
  }();
  return count < static_cast<int64_t>(table.size()) ? table[count] : std::log2(static_cast<float>(count));
}

void set_count(const OvqHead& rows, int64_t centroid, int64_t count) {
  rows.counts[centroid] = count;
  rows.log_counts[centroid] = log2_of_count(count);
}

void set_weight(const OvqHead& rows, int64_t row, float weight) {
  rows.weights[row] = weight;
  rows.log_counts[row] = std::log2(weight);
}

// What a centroid's count is as a number, with weights or without.
float count_of(const OvqHead& rows, int64_t centroid) {
  return rows.weights != nullptr ? rows.weights[centroid] : static_cast<float>(rows.counts[centroid]);
}

float update_rate(const OvqOptions& options, float count_after) {
  return options.rate ? *options.rate : 1.0f / count_after;
}

// What a member of a centroid has of its mean.
float share_of(const OvqOptions& options, float weight, float count_after) {
  return options.rate ? *options.rate : weight / count_after;
}

// Below it 1 / count may overflow, and products with weights lose digits. Weights times kTinyScale are of the same
// bits.
constexpr float kTinyCount = 0x1p-100f, kTinyScale = 0x1p100f;

// g . (x - row). Eight sums, since one would wait for itself: with it backward took a tenth longer (d 64, N 512).
float along_gradient(const float* gradient, const float* x, const float* row, int64_t dim) {
  constexpr int64_t kSums = 8;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= dim; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += gradient[i + j] * (x[i + j] - row[i + j]);
  }
  for (; i < dim; ++i) sums[i % kSums] += gradient[i] * (x[i] - row[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// g . (a x - b y)
float along_scaled(const float* g, const float* x, float a, const float* y, float b, int64_t dim) {
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(g[i]) * (a * x[i] - b * y[i]);
  return static_cast<float>(sum);
}

void scaled_copy(const float* from, float factor, int64_t dim, float* to) {
  update_row_by(from, dim, to, [=](float x, float) { return factor * x; });
}

}  // namespace

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

// A centroid's row in float32 while it is written.
struct OpenRow {
  float *key, *value;
};

// Where the row lies; stored as bfloat16, a copy of it.
OpenRow open_row(const Dictionary& dictionary, int64_t centroid, WriteScratch& scratch) {
  if (!dictionary.rows.narrow) return {dictionary.key(centroid), dictionary.value(centroid)};
  float* wide = scratch.wide.ensure(dictionary.key_dim + dictionary.value_dim);
  const OpenRow row = {wide, wide + dictionary.key_dim};
  widen_row(dictionary.narrow_key(centroid), dictionary.key_dim, row.key);
  widen_row(dictionary.narrow_value(centroid), dictionary.value_dim, row.value);
  return row;
}

// Puts the row, which may be a founder's own, where the centroid's is stored.
void store_row(const Dictionary& dictionary, int64_t centroid, const OpenRow& row) {
  if (dictionary.rows.narrow) {
    narrow_row(row.key, dictionary.key_dim, dictionary.narrow_key(centroid));
    narrow_row(row.value, dictionary.value_dim, dictionary.narrow_value(centroid));
  } else if (row.key != dictionary.key(centroid)) {
    copy_row(row.key, dictionary.key_dim, dictionary.key(centroid));
    copy_row(row.value, dictionary.value_dim, dictionary.value(centroid));
  }
}

// write_chunk, `weight_of` a token of the chunk, by its position, being 1 where there are no weights
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
  // A copy: new centroids take the place of the tokens.
  const int64_t chunk = write.options->chunk;
  float* weights = scratch.weights.ensure(chunk);
  std::copy_n(dictionary.rows.weights + dictionary.size, chunk, weights);
  write_chunk_with(dictionary, write, scratch, log, [weights](int32_t p) { return weights[p]; });
}

void unwrite_chunk(Dictionary& dictionary, const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log,
                   WriteScratch& scratch) {
  const OvqOptions& options = *write.options;
  const OvqHead& rows = dictionary.rows;
  const int64_t size_after = dictionary.size, size = size_after - write.new_count, chunk = options.chunk;
  const int64_t key_dim = dictionary.key_dim, value_dim = dictionary.value_dim;
  const auto key_gradient = [&](int64_t row) { return gradient.keys + row * gradient.key_stride; };
  const auto value_gradient = [&](int64_t row) { return gradient.values + row * gradient.value_stride; };
  const Members members(write, size, scratch);

  // The log holds this write's overwritten rows last, in the order in which for_each visits the old centroids.
  int64_t overwritten = 0;
  for (int64_t p = 0; p < chunk; ++p) {
    const int32_t a = write.assignment[p];
    if (a >= 0 && a < size && members.first[a] == p) ++overwritten;
  }
  log.entries -= overwritten;
  if (options.normalize) {
    log.norms -= overwritten + write.new_count;
    for (int64_t i = 0; i < overwritten; ++i) {
      const int32_t row = log.centroid[log.entries + i];
      normalize_gradient(key_gradient(row), dictionary.key(row), log.norm[log.norms + i], key_dim);
    }
    for (int64_t i = 0; i < write.new_count; ++i) {
      normalize_gradient(key_gradient(size + i), dictionary.key(size + i), log.norm[log.norms + overwritten + i],
                         key_dim);
    }
  }

  // Of values that tokens joined: from now on the gradients are those of their means, and of their norms.
  const auto joined = [&](int64_t centroid) { return members.first[centroid] != kNone; };
  if (options.value_norms) {
    const auto to_mean = [&](int64_t row) {
      mean_gradient(value_gradient(row), gradient.shrinkage[row], dictionary.value(row), rows.shrinkage[row],
                    value_dim);
    };
    for (int64_t i = 0; i < overwritten; ++i) to_mean(log.centroid[log.entries + i]);
    for (int64_t i = size; i < size_after; ++i) {
      if (joined(i)) to_mean(i);
    }
  }

  // The founders' gradients step aside: the chunk's tokens get their rows back.
  const int64_t founder_floats = key_dim + value_dim + 2;
  float* founders = scratch.panels.ensure(write.new_count * founder_floats);
  for (int64_t i = 0; i < write.new_count; ++i) {
    float* to = founders + i * founder_floats;
    copy_row(key_gradient(size + i), key_dim, to);
    copy_row(value_gradient(size + i), value_dim, to + key_dim);
    to[key_dim + value_dim] = options.weighted ? gradient.log_counts[size + i] : 0.0f;
    to[key_dim + value_dim + 1] = options.value_norms && joined(size + i) ? gradient.shrinkage[size + i] : 0.0f;
  }
  if (write.carried > 0) {
    std::memmove(key_gradient(size + chunk), key_gradient(size_after),
                 write.carried * gradient.key_stride * sizeof(float));
    std::memmove(value_gradient(size + chunk), value_gradient(size_after),
                 write.carried * gradient.value_stride * sizeof(float));
    if (options.weighted) {
      std::memmove(gradient.log_counts + size + chunk, gradient.log_counts + size_after, write.carried * sizeof(float));
    }
  }

  // The gradient g' of a written row, c dL/dc of its count and, with value_norms, that of the norm of its value.
  struct Written {
    int64_t row;
    const float *g_key, *g_value;
    float log_count, d_norm;
  };
  const auto founded = [&](int64_t i) -> Written {
    const float* g = founders + i * founder_floats;
    return {size + i, g, g + key_dim, g[key_dim + value_dim], g[key_dim + value_dim + 1]};
  };
  // With weights: dL/d log w = w (h' + g' . (x - D') / counts') of a row x that went into D' with weight w. Where D'
  // was rescaled it does not matter by how much: g' is perpendicular to it.
  // With value_norms the row of a value is its mean, of x the `shrinkage` * x, and its norm is one more element.
  const auto log_weight_gradient = [&](const Written& to, const float* key, const float* value, float weight,
                                       float shrinkage) {
    const float* mean = dictionary.value(to.row);
    float along = along_gradient(to.g_key, key, dictionary.key(to.row), key_dim);
    if (options.value_norms) {
      along += along_scaled(to.g_value, value, shrinkage, mean, rows.shrinkage[to.row], value_dim) +
               to.d_norm * (norm_of(value, value_dim) - norm_of(mean, value_dim));
    } else {
      along += along_gradient(to.g_value, value, mean, value_dim);
    }
    return weight / rows.weights[to.row] * (to.log_count + along);
  };
  const auto weight_of = [&](int64_t p) { return options.weighted ? write.tokens[p].weight : 1.0f; };
  const auto token_log_weight = [&](const Written& to, int64_t p) {
    if (!options.weighted) return;
    const TokenRow& token = write.tokens[p];
    gradient.log_counts[size + p] = log_weight_gradient(to, token.key, token.value, token.weight, 1.0f);
  };
  const auto token_norm = [&](const Written& to, int64_t p, float share) {
    if (options.value_norms)
      add_norm_gradient(share * to.d_norm, write.tokens[p].value, value_dim, value_gradient(size + p));
  };

  // g <- (counts / counts') g' for the row, w g' / counts' for each member (constant rate: 1 - m rate, and rate)
  for (int64_t i = 0; i < write.new_count; ++i) {
    const Written to = founded(i);
    const int32_t p = members.founder[i];
    const float own = options.rate ? 1.0f - static_cast<float>(rows.counts[size + i] - 1) * *options.rate
                                   : weight_of(p) / count_of(rows, size + i);
    scaled_copy(to.g_key, own, key_dim, key_gradient(size + p));
    scaled_copy(to.g_value, own, value_dim, value_gradient(size + p));
    token_norm(to, p, own);
    token_log_weight(to, p);
  }
  int64_t entry = log.entries;
  members.for_each(write, [&](int32_t centroid, int32_t member) {
    const bool old = centroid < size;
    Written to;
    if (old) {
      to = {centroid, key_gradient(centroid), value_gradient(centroid),
            options.weighted ? gradient.log_counts[centroid] : 0.0f,
            options.value_norms ? gradient.shrinkage[centroid] : 0.0f};
    } else {
      to = founded(centroid - size);
    }
    const int64_t count = options.weighted ? 0 : members.count(member);
    const float count_after = count_of(rows, centroid);
    for (; member != kNone; member = members.next[member]) {
      const float weight = share_of(options, weight_of(member), count_after);
      scaled_copy(to.g_key, weight, key_dim, key_gradient(size + member));
      scaled_copy(to.g_value, weight, value_dim, value_gradient(size + member));
      token_norm(to, member, weight);
      token_log_weight(to, member);
    }
    if (!old) return;
    float keep = 0.0f;
    const float* before = log.rows.data() + entry * (key_dim + value_dim);
    const float shrinkage = options.value_norms ? log.shrinkage[entry] : 1.0f;
    if (options.weighted) {
      const float count_before = log.count[entry];
      keep = count_before / count_after;
      gradient.log_counts[centroid] = log_weight_gradient(to, before, before + key_dim, count_before, shrinkage);
      set_weight(rows, centroid, count_before);
    } else {
      const int64_t before = rows.counts[centroid] - count;
      keep = options.rate ? 1.0f - static_cast<float>(count) * *options.rate : static_cast<float>(before) / count_after;
      set_count(rows, centroid, before);
    }
    scaled_copy(to.g_key, keep, key_dim, key_gradient(centroid));
    if (options.value_norms) {
      // mean = shrinkage * row, norm = |row|
      const float* row = before + key_dim;
      gradient.shrinkage[centroid] = keep * along_scaled(to.g_value, row, 1.0f, row, 0.0f, value_dim);
      scaled_copy(to.g_value, keep * shrinkage, value_dim, value_gradient(centroid));
      add_norm_gradient(keep * to.d_norm, row, value_dim, value_gradient(centroid));
    } else {
      scaled_copy(to.g_value, keep, value_dim, value_gradient(centroid));
    }
    ++entry;
  });

  for (int64_t i = 0; i < overwritten; ++i) {
    const float* logged = log.rows.data() + (log.entries + i) * (key_dim + value_dim);
    const int32_t row = log.centroid[log.entries + i];
    copy_row(logged, key_dim, dictionary.key(row));
    copy_row(logged + key_dim, value_dim, dictionary.value(row));
    if (options.value_norms) rows.shrinkage[row] = log.shrinkage[log.entries + i];
  }
  dictionary.size = size;
}

}  // namespace ovq::kernels::detail
