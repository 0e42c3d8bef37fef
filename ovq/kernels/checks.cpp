#include "ovq/kernels/checks.h"

#include <cmath>
#include <limits>

namespace ovq::kernels {

std::vector<Sequence> check_sequences(const char* op, int64_t batch, int64_t time,
                                      std::span<const int64_t> cu_seqlens) {
  std::vector<Sequence> sequences;
  if (cu_seqlens.empty()) {
    for (int64_t b = 0; b < batch; ++b) sequences.push_back({b, 0, time});
    return sequences;
  }
  check(batch == 1, op, "cu_seqlens is given with batch ", batch, "; packed sequences need batch 1");
  check(cu_seqlens.front() == 0, op, "cu_seqlens starts with ", cu_seqlens.front(), "; must start with 0");
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    check(cu_seqlens[i] >= cu_seqlens[i - 1], op, "cu_seqlens[", i, "] is ", cu_seqlens[i], " after ",
          cu_seqlens[i - 1], "; must not decrease");
    sequences.push_back({0, cu_seqlens[i - 1], cu_seqlens[i] - cu_seqlens[i - 1]});
  }
  check(cu_seqlens.back() == time, op, "cu_seqlens ends with ", cu_seqlens.back(), "; must end with q's time ", time);
  return sequences;
}

namespace {

void check_sizes(const char* op, const char* name, const View<const float>& view) {
  check(view.batch >= 0, op, name, " has batch ", view.batch, "; must be at least 0");
  check(view.time >= 0, op, name, " has time ", view.time, "; must be at least 0");
  check(view.heads >= 1, op, name, " has ", view.heads, " heads; must be at least 1");
  check(view.dim >= 1, op, name, " has dim ", view.dim, "; must be at least 1");
  check(view.data != nullptr || view.batch * view.time == 0, op, name, " is missing");
}

}  // namespace

void check_inputs(const char* op, const View<const float>& q, const View<const float>& k, const View<const float>& v,
                  std::span<const float> beta) {
  check_sizes(op, "q", q);
  check_sizes(op, "k", k);
  check_sizes(op, "v", v);
  check(k.batch == q.batch, op, "k has batch ", k.batch, "; must equal q's ", q.batch);
  check(v.batch == q.batch, op, "v has batch ", v.batch, "; must equal q's ", q.batch);
  check(v.time == k.time, op, "v has time ", v.time, "; must equal k's ", k.time);
  check(q.heads % k.heads == 0, op, "k has ", k.heads, " heads; must divide q's ", q.heads);
  check(v.heads == k.heads, op, "v has ", v.heads, " heads; must equal k's ", k.heads);
  check(k.dim == q.dim, op, "k has dim ", k.dim, "; must equal q's ", q.dim);
  check(static_cast<int64_t>(beta.size()) == q.heads, op, "beta has ", beta.size(),
        " elements; must be one per query head, ", q.heads);
  for (size_t h = 0; h < beta.size(); ++h) {
    check(std::abs(beta[h]) <= kLargestBeta, op, "beta[", h, "] is ", beta[h], "; must be finite, and within ",
          -kLargestBeta, " and ", kLargestBeta);
  }
}

void check_weights(const char* op, const View<const float>& weights) {
  for (int64_t b = 0; b < weights.batch; ++b) {
    for (int64_t t = 0; t < weights.time; ++t) {
      for (int64_t h = 0; h < weights.heads; ++h) {
        const float weight = *weights.row(b, t, h);
        check(weight > 0.0f && weight <= kLargestWeight, op, "weights[", b, ", ", t, ", ", h, "] is ", weight,
              "; must be positive and finite, at most ", kLargestWeight);
      }
    }
  }
}

void check_options(const char* op, const OvqOptions& options, int64_t key_dim) {
  check_fields(op, options);
  check(options.chunk <= std::numeric_limits<int32_t>::max(), op, "chunk is ", options.chunk, "; must be below 2^31");
  check(options.growth != Growth::linear || options.total_tokens >= 1, op, "total_tokens is ", options.total_tokens,
        "; linear growth needs at least 1");
  check(!options.weighted || !options.rate, op, "weights do not go with a constant rate");
  check(!options.value_norms || !options.rate, op, "value_norms do not go with a constant rate");
  check(!options.rope || key_dim % 2 == 0, op, "q has dim ", key_dim, "; rope needs an even one");
  check(!options.rope || (std::isfinite(options.rope_base) && options.rope_base > 1.0f), op, "rope_base is ",
        options.rope_base, "; must be finite and above 1");
}

}  // namespace ovq::kernels
