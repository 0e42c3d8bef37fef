// The gradient of a write (see write_chunk), row by row:
//   g <- (counts / counts') g' of the row before,  w g' / counts' of each token that joined it
// and with a constant rate 1 - m rate instead of counts / counts', and rate instead of 1 / counts'.
#include <cstring>

#include "ovq/core/small_rows.h"
#include "ovq/ops/ovq_attention/dictionary.h"
#include "ovq/ops/ovq_attention/members.h"
#include "ovq/ops/ovq_attention/value_norms.h"

namespace ovq::kernels::detail {
namespace {

// g <- (g - y (y . g)) / |row|, the gradient of normalize_row
void normalize_gradient(float* gradient, const float* normalized, float norm, int64_t dim) {
  if (!(norm > 0.0f)) return;
  double along = 0.0;
  for (int64_t i = 0; i < dim; ++i) along += static_cast<double>(normalized[i]) * gradient[i];
  for (int64_t i = 0; i < dim; ++i) {
    gradient[i] = (gradient[i] - normalized[i] * static_cast<float>(along)) / norm;
  }
}

// g . (x - row), in eight sums to hide the latency of additions: with one sum backward took a tenth longer (d 64, N
// 512).
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

void scaled_copy(const float* from, float factor, int64_t dim, float* to) {
  for_row(dim, [=](int64_t i) { to[i] = factor * from[i]; });
}

// A written row with its gradients: g', c dL/dc of its count c and, with value_norms, the gradient of its value's norm.
struct Written {
  int64_t row;
  const float *g_key, *g_value;
  float log_count, d_norm;
};

class ChunkUnwrite {
 public:
  ChunkUnwrite(Dictionary& dictionary, const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log,
               WriteScratch& scratch)
      : dictionary_(dictionary),
        write_(write),
        options_(*write.options),
        gradient_(gradient),
        log_(log),
        rows_(dictionary.rows),
        size_(dictionary.size - write.new_count),
        key_dim_(dictionary.key_dim),
        value_dim_(dictionary.value_dim),
        members_(write, size_, scratch),
        founders_(scratch.panels.ensure(write.new_count * founder_floats())) {}

  void run() {
    pop_log();
    if (options_.normalize) undo_normalization();
    if (options_.value_norms) turn_to_means();
    set_founders_aside();
    if (write_.carried > 0) move_carried();
    for (int64_t i = 0; i < write_.new_count; ++i) share_with_founder(i);
    int64_t entry = log_.entries;
    members_.for_each(write_, [&](int32_t centroid, int32_t member) {
      const bool old = centroid < size_;
      const Written to = old ? overwritten(centroid) : founded(centroid - size_);
      const int64_t count = options_.weighted ? 0 : members_.count(member);
      share_with_members(to, member);
      if (old) share_with_row_before(to, count, entry++);
    });
    restore_rows();
  }

 private:
  float* key_gradient(int64_t row) const { return gradient_.keys + row * gradient_.key_stride; }
  float* value_gradient(int64_t row) const { return gradient_.values + row * gradient_.value_stride; }
  bool joined(int64_t centroid) const { return members_.first[centroid] != kNone; }
  float weight_of(int64_t p) const { return options_.weighted ? write_.tokens[p].weight : 1.0f; }
  int64_t founder_floats() const { return key_dim_ + value_dim_ + 2; }
  const float* logged(int64_t entry) const { return log_.rows.data() + entry * (key_dim_ + value_dim_); }

  // This write's overwritten rows are the last entries of the log, in the order in which for_each visits old centroids.
  void pop_log() {
    for (int64_t p = 0; p < options_.chunk; ++p) {
      const int32_t a = write_.assignment[p];
      if (a >= 0 && a < size_ && members_.first[a] == p) ++overwritten_count_;
    }
    log_.entries -= overwritten_count_;
    if (options_.normalize) log_.norms -= overwritten_count_ + write_.new_count;
  }

  void undo_normalization() {
    const float* norm = log_.norm.data() + log_.norms;
    const auto undo = [&](int64_t row) {
      normalize_gradient(key_gradient(row), dictionary_.key(row), *norm++, key_dim_);
    };
    for (int64_t i = 0; i < overwritten_count_; ++i) undo(log_.centroid[log_.entries + i]);
    for (int64_t i = 0; i < write_.new_count; ++i) undo(size_ + i);
  }

  // For values that tokens joined: turns the gradients into those of their means and norms.
  void turn_to_means() {
    const auto turn = [&](int64_t row) {
      mean_gradient(value_gradient(row), gradient_.shrinkage[row], dictionary_.value(row), rows_.shrinkage[row],
                    value_dim_);
    };
    for (int64_t i = 0; i < overwritten_count_; ++i) turn(log_.centroid[log_.entries + i]);
    for (int64_t i = size_; i < dictionary_.size; ++i) {
      if (joined(i)) turn(i);
    }
  }

  // Saves the founders' gradients, because the chunk's tokens get their rows back.
  void set_founders_aside() {
    for (int64_t i = 0; i < write_.new_count; ++i) {
      float* to = founders_ + i * founder_floats();
      copy_row(key_gradient(size_ + i), key_dim_, to);
      copy_row(value_gradient(size_ + i), value_dim_, to + key_dim_);
      to[key_dim_ + value_dim_] = options_.weighted ? gradient_.log_counts[size_ + i] : 0.0f;
      to[key_dim_ + value_dim_ + 1] = options_.value_norms && joined(size_ + i) ? gradient_.shrinkage[size_ + i] : 0.0f;
    }
  }

  void move_carried() {
    const int64_t from = dictionary_.size, to = size_ + options_.chunk;
    std::memmove(key_gradient(to), key_gradient(from), write_.carried * gradient_.key_stride * sizeof(float));
    std::memmove(value_gradient(to), value_gradient(from), write_.carried * gradient_.value_stride * sizeof(float));
    if (!options_.weighted) return;
    std::memmove(gradient_.log_counts + to, gradient_.log_counts + from, write_.carried * sizeof(float));
  }

  Written founded(int64_t i) const {
    const float* g = founders_ + i * founder_floats();
    return {size_ + i, g, g + key_dim_, g[key_dim_ + value_dim_], g[key_dim_ + value_dim_ + 1]};
  }
  Written overwritten(int64_t centroid) const {
    return {centroid, key_gradient(centroid), value_gradient(centroid),
            options_.weighted ? gradient_.log_counts[centroid] : 0.0f,
            options_.value_norms ? gradient_.shrinkage[centroid] : 0.0f};
  }

  // With weights: dL/d log w = w (h' + g' . (x - D') / counts') for a row x that went into D' with weight w. If D' was
  // rescaled, the factor does not matter: g' is perpendicular to D'. With value_norms a value's row is its mean,
  // `shrinkage` * x for the row x, with the norm as one more element.
  float log_weight_gradient(const Written& to, const TokenRow& x, float shrinkage) const {
    const float* mean = dictionary_.value(to.row);
    float along = along_gradient(to.g_key, x.key, dictionary_.key(to.row), key_dim_);
    if (options_.value_norms) {
      along += along_scaled(to.g_value, x.value, shrinkage, mean, rows_.shrinkage[to.row], value_dim_) +
               to.d_norm * (norm_of(x.value, value_dim_) - norm_of(mean, value_dim_));
    } else {
      along += along_gradient(to.g_value, x.value, mean, value_dim_);
    }
    return x.weight / rows_.weights[to.row] * (to.log_count + along);
  }

  void share_with_token(const Written& to, int64_t p, float share) const {
    scaled_copy(to.g_key, share, key_dim_, key_gradient(size_ + p));
    scaled_copy(to.g_value, share, value_dim_, value_gradient(size_ + p));
    if (options_.value_norms)
      add_norm_gradient(share * to.d_norm, write_.tokens[p].value, value_dim_, value_gradient(size_ + p));
    if (options_.weighted) gradient_.log_counts[size_ + p] = log_weight_gradient(to, write_.tokens[p], 1.0f);
  }

  void share_with_founder(int64_t i) const {
    const int32_t p = members_.founder[i];
    const float share = options_.rate ? 1.0f - static_cast<float>(rows_.counts[size_ + i] - 1) * *options_.rate
                                      : weight_of(p) / count_of(rows_, size_ + i);
    share_with_token(founded(i), p, share);
  }

  void share_with_members(const Written& to, int32_t member) const {
    const float count = count_of(rows_, to.row);
    for (; member != kNone; member = members_.next[member]) {
      share_with_token(to, member, options_.rate ? *options_.rate : weight_of(member) / count);
    }
  }

  // Passes on the gradient of the row before `tokens` tokens joined it, and restores its count.
  void share_with_row_before(const Written& to, int64_t tokens, int64_t entry) const {
    const int64_t centroid = to.row;
    const float *key = logged(entry), *value = key + key_dim_;
    const float shrinkage = options_.value_norms ? log_.shrinkage[entry] : 1.0f;
    const float count_after = count_of(rows_, centroid);
    float share = 0.0f;
    if (options_.weighted) {
      const float count = log_.count[entry];
      share = count / count_after;
      gradient_.log_counts[centroid] = log_weight_gradient(to, {key, value, count}, shrinkage);
      set_weight(rows_, centroid, count);
    } else {
      const int64_t count = rows_.counts[centroid] - tokens;
      share =
          options_.rate ? 1.0f - static_cast<float>(tokens) * *options_.rate : static_cast<float>(count) / count_after;
      set_count(rows_, centroid, count);
    }
    scaled_copy(to.g_key, share, key_dim_, key_gradient(centroid));
    if (options_.value_norms) {
      // mean = shrinkage * row, norm = |row|
      gradient_.shrinkage[centroid] = share * along_scaled(to.g_value, value, 1.0f, value, 0.0f, value_dim_);
      scaled_copy(to.g_value, share * shrinkage, value_dim_, value_gradient(centroid));
      add_norm_gradient(share * to.d_norm, value, value_dim_, value_gradient(centroid));
    } else {
      scaled_copy(to.g_value, share, value_dim_, value_gradient(centroid));
    }
  }

  void restore_rows() {
    for (int64_t entry = log_.entries; entry < log_.entries + overwritten_count_; ++entry) {
      const int32_t row = log_.centroid[entry];
      copy_row(logged(entry), key_dim_, dictionary_.key(row));
      copy_row(logged(entry) + key_dim_, value_dim_, dictionary_.value(row));
      if (options_.value_norms) rows_.shrinkage[row] = log_.shrinkage[entry];
    }
    dictionary_.size = size_;
  }

  Dictionary& dictionary_;
  const ChunkWrite& write_;
  const OvqOptions& options_;
  const DictionaryGradient& gradient_;
  UndoLog& log_;
  const OvqHead& rows_;
  const int64_t size_;  // of the dictionary before the write
  const int64_t key_dim_, value_dim_;
  const Members members_;
  float* const founders_;  // saved gradients of the founders
  int64_t overwritten_count_ = 0;
};

}  // namespace

void unwrite_chunk(Dictionary& dictionary, const ChunkWrite& write, const DictionaryGradient& gradient, UndoLog& log,
                   WriteScratch& scratch) {
  ChunkUnwrite(dictionary, write, gradient, log, scratch).run();
}

}  // namespace ovq::kernels::detail
