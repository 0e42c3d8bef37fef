#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ovq/ops/attention/torch_plain.h"
#include "ovq/ops/ovq_attention/dictionary.h"
#include "ovq/ops/rotary/torch.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::NewCentroids;
using kernels::OvqOptions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// NaN compares as -infinity.
Tensor without_nan(const Tensor& similarity) {
  return at::isnan(similarity).any().item<bool>() ? at::nan_to_num(similarity, -kInfinity, kInfinity, -kInfinity)
                                                  : similarity;
}

// The nearest of `keys` [B, H, n, d] for each token [B, H, L, d]: similarity and index, the lowest index on a tie.
std::pair<Tensor, Tensor> nearest(const Tensor& tokens, const Tensor& keys) {
  const Tensor similarity = at::matmul(tokens, keys.transpose(-1, -2));
  auto [best, index] = similarity.max(-1);
  if (at::isnan(best).any().item<bool>()) std::tie(best, index) = without_nan(similarity).max(-1);
  return {best, index};
}

// Farthest-first traversal: true for the `count` founders among the tokens [B, H, L, d].
Tensor farthest_first(const Tensor& tokens, int64_t count) {
  const Tensor similarity = without_nan(at::matmul(tokens, tokens.transpose(-1, -2)));  // [B, H, L, L]
  const bool infinite = at::isposinf(similarity).any().item<bool>();
  const int64_t chunk = tokens.size(2);
  Tensor chosen = at::zeros({tokens.size(0), tokens.size(1), chunk}, tokens.options().dtype(at::kBool));
  Tensor closest = at::full_like(similarity.select(-1, 0), -kInfinity);
  Tensor next = at::zeros({tokens.size(0), tokens.size(1), 1}, tokens.options().dtype(at::kLong));
  for (int64_t i = 0; i < count; ++i) {
    chosen.scatter_(-1, next, true);
    const Tensor column = similarity.gather(-1, next.unsqueeze(-2).expand({-1, -1, chunk, -1})).squeeze(-1);
    closest = at::maximum(closest, column);
    next = std::get<1>(closest.masked_fill(chosen, kInfinity).min(-1, true));
    // A chosen key is never chosen again, even where the others are infinitely similar.
    if (infinite) next = at::where(chosen.gather(-1, next), std::get<1>(chosen.to(at::kInt).min(-1, true)), next);
  }
  return chosen;
}

// w (1 - s), a similarity above 1 counting as 1: the weighted distance to what the dictionary has
Tensor founder_score(const Tensor& weights, const Tensor& similarity) {
  return weights * (1 - similarity).clamp_min(0);
}

// The same with weights [B, H, L]: the heaviest key, then again and again the one with the largest score; the less
// similar one on a tie.
Tensor farthest_first(const Tensor& tokens, const Tensor& weights, int64_t count) {
  const Tensor similarity = without_nan(at::matmul(tokens, tokens.transpose(-1, -2)));  // [B, H, L, L]
  const int64_t chunk = tokens.size(2);
  Tensor chosen = at::zeros_like(weights, at::kBool);
  Tensor closest = at::full_like(weights, -kInfinity);
  Tensor next = std::get<1>(weights.max(-1, true));
  for (int64_t i = 0; i < count; ++i) {
    chosen.scatter_(-1, next, true);
    const Tensor column = similarity.gather(-1, next.unsqueeze(-2).expand({-1, -1, chunk, -1})).squeeze(-1);
    closest = at::maximum(closest, column);
    const Tensor score = founder_score(weights, closest).masked_fill(chosen, -1);
    const Tensor behind = score != std::get<0>(score.max(-1, true));
    next = std::get<1>(closest.masked_fill(behind, kInfinity).min(-1, true));
    // A chosen key is never chosen again, even where the others are infinitely similar.
    next = at::where(chosen.gather(-1, next), std::get<1>(chosen.to(at::kInt).min(-1, true)), next);
  }
  return chosen;
}

// True for the `count` tokens with the smallest rank [B, H, L], earlier on a tie.
Tensor smallest(const Tensor& rank, int64_t count) {
  const Tensor order = std::get<1>(at::sort(rank, /*stable=*/true, -1, false)).slice(-1, 0, count);
  return at::zeros_like(rank, at::kBool).scatter_(-1, order, true);
}

// True for the `count` tokens with the largest score, the less similar and then the earlier one on a tie.
Tensor largest_score(const Tensor& weights, const Tensor& similarity, int64_t count) {
  const Tensor by_similarity = std::get<1>(at::sort(similarity, /*stable=*/true, -1, false));
  const Tensor score = founder_score(weights, similarity).gather(-1, by_similarity);
  const Tensor by_score = std::get<1>(at::sort(score, /*stable=*/true, -1, true)).slice(-1, 0, count);
  return at::zeros_like(similarity, at::kBool).scatter_(-1, by_similarity.gather(-1, by_score), true);
}

// The ranks are 64-bit and unsigned; their order is what counts.
Tensor random_founders(const Tensor& tokens, const OvqOptions& options, int64_t chunk_index, int64_t count) {
  const int64_t heads = tokens.size(1), chunk = tokens.size(2);
  std::vector<int64_t> rank(heads * chunk);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t p = 0; p < chunk; ++p) {
      const uint64_t value = kernels::random_rank(options.seed, h, chunk_index, p);
      rank[h * chunk + p] = static_cast<int64_t>(value ^ (uint64_t{1} << 63));
    }
  }
  const Tensor ranks = at::tensor(rank, at::kLong).reshape({1, heads, chunk}).to(tokens.device());
  return smallest(ranks.expand({tokens.size(0), -1, -1}), count);
}

// Which centroid each token of the chunk goes to, [B, H, L]; founders number the new ones by position.
struct Choice {
  Tensor centroid;
  Tensor founds;  // bool
};

Choice choose(const PlainState& state, const Tensor& tokens, int64_t chunk_index, int64_t new_count) {
  const OvqOptions& options = state.options;
  const int64_t size = state.keys.size(2);
  const bool founding = size == 0;
  Tensor best, index, founds;
  if (!founding) std::tie(best, index) = nearest(tokens, state.keys);
  if (options.new_centroids == NewCentroids::random) {
    founds = random_founders(tokens, options, chunk_index, new_count);
  } else if (options.weighted) {
    const Tensor weights = state.pending_weights.slice(2, 0, options.chunk);
    founds = founding ? farthest_first(tokens, weights, new_count) : largest_score(weights, best, new_count);
  } else {
    founds = founding ? farthest_first(tokens, new_count) : smallest(best, new_count);
  }
  const Tensor number = founds.to(at::kLong).cumsum(-1) - 1;
  if (founding) {
    const Tensor founder =
        std::get<1>(at::sort(founds.to(at::kInt), /*stable=*/true, -1, true)).slice(-1, 0, new_count);
    const Tensor keys = tokens.gather(2, founder.unsqueeze(-1).expand({-1, -1, -1, tokens.size(3)}));
    index = std::get<1>(nearest(tokens, keys));
  }
  return {at::where(founds, number + size, index), founds};
}

// The rows that `index` [B, H, r] picks out of x [B, H, n, D], by number in [B * H * n, D]
Tensor row_numbers(const Tensor& index, int64_t n) {
  const int64_t batch = index.size(0), heads = index.size(1);
  return (index + at::arange(batch * heads, index.options()).mul_(n).view({batch, heads, 1})).flatten();
}

// Where the tokens of a chunk go, [B, H, L].
struct Membership {
  Tensor centroid;
  Tensor weight;
  Tensor rate;  // of x - D: w / counts', or constant
};

// D' <- D + sum (x - D) rate, keys and values alike. In place on the grown dictionary, of which nothing has been saved
// for backward yet: one copy of it per chunk. Whole rows move; gather and scatter_add would move single elements.
Tensor update_rows(const Tensor& rows, const Tensor& tokens, const Membership& members, const Tensor& founder) {
  const int64_t chunk = tokens.size(2), dim = tokens.size(3);
  const auto heads = [&](const Tensor& x, int64_t n) {
    return at::_unsafe_view(x, {tokens.size(0), tokens.size(1), n, dim});
  };
  const Tensor x = tokens.reshape({-1, dim}), founders = x.index_select(0, row_numbers(founder, chunk));
  const Tensor grown = at::cat({rows, heads(founders, founder.size(2))}, 2);
  const Tensor to = row_numbers(members.centroid, grown.size(2));
  Tensor updated = at::_unsafe_view(grown, {grown.numel() / dim, dim});
  updated.index_add_(0, to, (x - updated.index_select(0, to)) * members.rate.reshape({-1, 1}));
  return heads(updated, grown.size(2));
}

// With value_norms a row of values is the mean of its tokens' values, as long as they are on average, and `shrinkage`
// times the row is that mean: both are updated, and the rows that tokens joined take the new direction and length.
void update_values(PlainState& state, const Tensor& tokens, const Membership& members, const Tensor& founder) {
  // 0 for a row of zeros, whose norm has no gradient
  const auto norms_of = [](const Tensor& rows) {
    const Tensor none = (rows == 0).all(-1, true);
    return at::where(none, at::ones_like(rows), rows).norm(2, {-1}, true).masked_fill(none, 0);
  };
  const Tensor means = update_rows(state.values * state.shrinkage.unsqueeze(-1), tokens, members, founder);
  const Tensor norms = update_rows(norms_of(state.values), norms_of(tokens), members, founder);
  const Tensor own = norms_of(means);
  const auto grown = [&](const Tensor& x, const Tensor& founders) { return at::cat({x, founders}, 2); };
  const Tensor rows = tokens.reshape({-1, tokens.size(3)}).index_select(0, row_numbers(founder, tokens.size(2)));
  const Tensor before =
      grown(state.values, rows.view({tokens.size(0), tokens.size(1), founder.size(2), tokens.size(3)}));
  const Tensor shrinkage =
      grown(state.shrinkage, at::ones({tokens.size(0), tokens.size(1), founder.size(2)}, tokens.options()))
          .unsqueeze(-1);
  // A founder is its own member; it has joined others if there are two.
  const Tensor one = at::ones_like(members.centroid);
  const Tensor joining = at::zeros({before.size(0), before.size(1), before.size(2)}, one.options())
                             .scatter_add_(2, members.centroid, one)
                             .scatter_add_(2, members.centroid.gather(2, founder), -at::ones_like(founder));
  const Tensor joined = (joining > 0).unsqueeze(-1), has_length = (own > 0).logical_and(norms > 0);
  const Tensor safe_own = own.masked_fill(has_length.logical_not(), 1);
  const Tensor safe_norms = norms.masked_fill(has_length.logical_not(), 1);
  state.values = at::where(joined, means * (safe_norms / safe_own), before);
  state.shrinkage = at::where(joined, safe_own / safe_norms, shrinkage).squeeze(-1);
}

// Writes the first L pending tokens to the dictionary.
void write_chunk(PlainState& state, int64_t committed, const Tensor& forced) {
  const OvqOptions& options = state.options;
  const int64_t chunk = options.chunk, size = state.keys.size(2);
  const int64_t new_count = kernels::new_centroid_count(options, size, committed);
  const Tensor tokens_k = state.pending_keys.slice(2, 0, chunk), tokens_v = state.pending_values.slice(2, 0, chunk);
  Choice choice;
  Tensor founder;
  {
    const at::NoGradGuard no_grad;
    if (forced.defined()) {
      choice = {at::where(forced < 0, forced.bitwise_not(), forced), forced < 0};
    } else {
      choice = choose(state, tokens_k, committed / chunk - 1, new_count);
    }
    founder = std::get<1>(at::sort(choice.founds.to(at::kInt), /*stable=*/true, -1, true)).slice(-1, 0, new_count);
  }
  const at::ScalarType dtype = tokens_k.scalar_type();
  Membership members{choice.centroid, {}, {}};
  members.weight = options.weighted ? state.pending_weights.slice(2, 0, chunk)
                                    : at::ones_like(choice.centroid, state.counts.scalar_type());
  const Tensor none = at::zeros({state.counts.size(0), state.counts.size(1), new_count}, state.counts.options());
  const Tensor counts = at::cat({state.counts, none}, 2).scatter_add(2, members.centroid, members.weight);
  members.rate = options.rate ? at::full_like(members.centroid, *options.rate, dtype)
                              : members.weight.to(dtype) / counts.gather(2, members.centroid).to(dtype);
  state.keys = update_rows(state.keys, tokens_k, members, founder);
  if (options.value_norms)
    update_values(state, tokens_v, members, founder);
  else
    state.values = update_rows(state.values, tokens_v, members, founder);
  state.counts = counts;
  if (options.normalize) {
    const Tensor touched = at::zeros_like(counts, at::kBool).scatter_(2, members.centroid, true).unsqueeze(-1);
    const Tensor norm = state.keys.detach().norm(2, {-1}, true);
    const Tensor rescale = touched.logical_and(norm > 0);
    // Only the rows that are rescaled are divided: a zero row has no gradient of its norm.
    const Tensor safe = at::where(rescale, state.keys, at::ones_like(state.keys));
    state.keys = at::where(rescale, safe / safe.norm(2, {-1}, true), state.keys);
  }
  state.pending_keys = state.pending_keys.slice(2, chunk);
  state.pending_values = state.pending_values.slice(2, chunk);
  if (options.weighted) state.pending_weights = state.pending_weights.slice(2, chunk);
}

// True where a key of the window lies after the query: [G * r, window] for the window's last r tokens
Tensor future(const Tensor& like, int64_t group, int64_t count, int64_t window) {
  return at::ones({count, window}, like.options().dtype(at::kBool)).triu(window - count + 1).repeat({group, 1});
}

// o for the queries [B, Hkv, G * r, dk] (scaled by beta) of the window's last r tokens. In place where autograd has not
// saved what is overwritten; `split` has one backward for both parts.
Tensor read_chunk(const PlainState& state, const Tensor& rows, const Tensor& window_keys, const Tensor& hidden) {
  const int64_t window = window_keys.size(2), size = state.keys.size(2);
  Tensor recent = at::matmul(rows, window_keys.transpose(-1, -2));
  if (state.options.weighted) recent.add_(at::log(state.pending_weights).unsqueeze(-2));
  recent.masked_fill_(hidden, -kInfinity);
  if (size == 0) return at::matmul(at::softmax(recent, -1), state.pending_values);
  const Tensor log_counts = at::log(state.counts.to(rows.scalar_type())).unsqueeze(-2);
  const Tensor distant = at::matmul(rows, state.keys.transpose(-1, -2)).add_(log_counts);
  const auto p = at::softmax(at::cat({distant, recent}, -1), -1).split({size, window}, -1);
  return at::matmul(p[0], state.values).add_(at::matmul(p[1], state.pending_values));
}

// How many of `time` tokens belong to each chunk, the first of which has `row` tokens already.
std::vector<int64_t> chunk_sizes(int64_t row, int64_t chunk, int64_t time) {
  std::vector<int64_t> sizes;
  for (int64_t done = 0; done < time; done += sizes.back()) {
    sizes.push_back(std::min(sizes.empty() ? chunk - row : chunk, time - done));
  }
  return sizes;
}

// The tokens `more` after those that wait.
Tensor append(const Tensor& pending, const Tensor& more) {
  return pending.size(2) == 0 ? more : at::cat({pending, more}, 2);
}

}  // namespace

PlainState PlainState::empty(const Tensor& k, const Tensor& v, const OvqOptions& options) {
  const int64_t batch = k.size(0), heads = k.size(2);
  PlainState state;
  state.options = options;
  state.keys = state.pending_keys = k.new_zeros({batch, heads, 0, k.size(3)});
  state.values = state.pending_values = v.new_zeros({batch, heads, 0, v.size(3)});
  if (options.value_norms) state.shrinkage = v.new_zeros({batch, heads, 0});
  state.counts = at::zeros({batch, heads, 0}, options.weighted ? k.options() : k.options().dtype(at::kLong));
  if (options.weighted) state.pending_weights = k.new_zeros({batch, heads, 0});
  return state;
}

PlainResult plain_ovq_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                const PlainState& initial, const Tensor& weights, const Tensor& forced) {
  PlainState state = initial;
  const OvqOptions& options = initial.options;
  const int64_t time = q.size(1), kv_heads = k.size(2), group = q.size(2) / kv_heads, chunk = options.chunk;
  const int64_t first_assigned = initial.position - initial.pending_keys.size(2);
  // Split once: the backward of each slice would be a tensor of all tokens.
  const std::vector<int64_t> sizes = chunk_sizes(state.position % chunk, chunk, time);
  const auto pieces = [&](const Tensor& x) { return x.transpose(1, 2).split_with_sizes(sizes, 2); };  // [B, H, r, D]
  std::vector<Tensor> queries, keys, values, masses;
  if (!sizes.empty()) {
    queries = pieces(q * beta.unsqueeze(-1));
    keys = pieces(k);
    values = pieces(v);
    if (options.weighted) masses = pieces(weights);
  }
  std::vector<Tensor> outputs;
  Tensor hidden;
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    const int64_t row = state.position % chunk, count = sizes[piece];
    state.pending_keys = append(state.pending_keys, keys[piece]);
    state.pending_values = append(state.pending_values, values[piece]);
    if (options.weighted) state.pending_weights = append(state.pending_weights, masses[piece]);
    Tensor rows = queries[piece], window_keys = state.pending_keys;
    if (options.rope) {
      // The current chunk stands at positions L + 1 ... 2 L, the previous one before it.
      rows = rotate_composed(rows, chunk + 1 + row, options.rope_base);
      window_keys = rotate_composed(window_keys, chunk + 1 + row + count - window_keys.size(2), options.rope_base);
    }
    rows = rows.reshape({q.size(0), kv_heads, group * count, q.size(3)});
    if (!hidden.defined() || hidden.size(0) != rows.size(2) || hidden.size(1) != window_keys.size(2)) {
      hidden = future(rows, group, count, window_keys.size(2));
    }
    const Tensor o = read_chunk(state, rows, window_keys, hidden);
    outputs.push_back(o.reshape({q.size(0), q.size(2), count, v.size(3)}));
    state.position += count;
    const int64_t committed = state.position - (options.rope ? chunk : 0);
    if (state.position % chunk != 0 || committed <= 0) continue;
    Tensor given;
    if (forced.defined()) {
      const int64_t at_row = committed - chunk - first_assigned;
      given = forced.slice(1, at_row, at_row + chunk).transpose(1, 2).to(at::kLong);
    }
    write_chunk(state, committed, given);
  }
  if (outputs.empty()) return {q.new_zeros({q.size(0), 0, q.size(2), v.size(3)}), state};
  // Tokens that wait do not keep the others alive, nor see changes to k and v.
  state.pending_keys = state.pending_keys.clone();
  state.pending_values = state.pending_values.clone();
  if (options.weighted) state.pending_weights = state.pending_weights.clone();
  return {at::cat(outputs, 2).transpose(1, 2), state};
}

}  // namespace ovq::ops
