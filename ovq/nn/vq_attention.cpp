#include "ovq/nn/vq_attention.h"

#include <algorithm>
#include <limits>

#include "ovq/kernels/error.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/replaced.h"
#include "ovq/ops/attention.h"

namespace ovq::nn {
namespace {

// [B, t, Hkv, ...] -> [B, Hkv, t, ...]
Tensor heads_first(const Tensor& x) { return x.transpose(1, 2); }

// counts [B, Hkv, K] and means [B, Hkv, K, D] with the tokens (index [B, t, Hkv], v [B, t, Hkv, D]) added
void add_tokens(MixerState& state, const Tensor& index, const Tensor& v) {
  Tensor &counts = state.tensors["counts"], &means = state.tensors["means"];
  const Tensor where = heads_first(index);
  const Tensor ones = at::ones(where.sizes(), counts.options());
  const Tensor after = counts + at::zeros_like(counts).scatter_add_(2, where, ones);
  const Tensor sums =
      at::zeros_like(means).scatter_add(2, where.unsqueeze(-1).expand({-1, -1, -1, v.size(3)}), heads_first(v));
  means = (means * counts.unsqueeze(-1) + sums) / after.clamp_min(1).unsqueeze(-1);
  counts = after;
}

// Attention of q [B, t, H, D], whose first query sees all but the last t - 1 tokens of the window.
Tensor read(const Tensor& q, const Tensor& codewords, const Tensor& beta, const MixerState& state) {
  const Tensor &counts = state.tensors.at("counts"), &means = state.tensors.at("means");
  const Tensor index = heads_first(state.tensors.at("index")), v = heads_first(state.tensors.at("values"));
  const int64_t batch = q.size(0), time = q.size(1), heads = q.size(2), kv_heads = codewords.size(0);
  const int64_t group = heads / kv_heads, window = index.size(2), count = codewords.size(1), dim = q.size(3);
  // [B, Hkv, group t, D]
  const Tensor rows = (q * beta.view({1, 1, -1, 1}))
                          .view({batch, time, kv_heads, group, dim})
                          .permute({0, 2, 3, 1, 4})
                          .reshape({batch, kv_heads, group * time, dim});
  const Tensor logits = at::matmul(rows, codewords.transpose(1, 2));  // [B, Hkv, group t, K]
  const Tensor of_window = logits.gather(3, index.unsqueeze(2).expand({-1, -1, group * time, -1}));
  const Tensor last = at::arange(window - time, window, q.options().dtype(at::kLong)).repeat({group}).unsqueeze(1);
  const Tensor hidden = at::arange(window, last.options()).unsqueeze(0) > last;
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const Tensor all = at::cat({logits + counts.log().unsqueeze(2), of_window.masked_fill(hidden, kHidden)}, 3);
  const Tensor p = all.softmax(3);
  const Tensor o = at::matmul(p.narrow(3, 0, count), means) + at::matmul(p.narrow(3, count, window), v);
  return o.view({batch, kv_heads, group, time, v.size(3)})
      .permute({0, 3, 1, 2, 4})
      .reshape({batch, time, heads, v.size(3)});
}

}  // namespace

Tensor vq_linear_attention(const Tensor& q, const Tensor& index, const Tensor& codewords, const Tensor& v,
                           const Tensor& beta, int64_t chunk, MixerState& state) {
  const int64_t batch = q.size(0), kv_heads = codewords.size(0);
  if (!state.tensors.contains("counts")) {
    state.tensors["counts"] = at::zeros({batch, kv_heads, codewords.size(1)}, q.options());
    state.tensors["means"] = at::zeros({batch, kv_heads, codewords.size(1), v.size(3)}, q.options());
    state.tensors["index"] = index.narrow(1, 0, 0);
    state.tensors["values"] = v.narrow(1, 0, 0);
  }
  for (const char* name : {"counts", "means"}) state.tensors[name] = state.tensors[name].to(q.scalar_type());
  state.tensors["values"] = state.tensors["values"].to(v.scalar_type());
  std::vector<Tensor> outputs;
  for (int64_t first = 0; first < q.size(1);) {
    const int64_t row = state.position % chunk, count = std::min(chunk - row, q.size(1) - first);
    Tensor &window_index = state.tensors["index"], &window_values = state.tensors["values"];
    if (row == 0 && window_index.size(1) == 2 * chunk) {  // the oldest chunk of the window goes into the dictionary
      add_tokens(state, window_index.narrow(1, 0, chunk), window_values.narrow(1, 0, chunk));
      window_index = window_index.narrow(1, chunk, chunk).contiguous();
      window_values = window_values.narrow(1, chunk, chunk).contiguous();
    }
    window_index = at::cat({window_index, index.narrow(1, first, count)}, 1);
    window_values = at::cat({window_values, v.narrow(1, first, count)}, 1);
    outputs.push_back(read(q.narrow(1, first, count), codewords, beta, state));
    state.position += count;
    first += count;
  }
  return outputs.empty() ? at::zeros({batch, 0, q.size(2), v.size(3)}, q.options()) : at::cat(outputs, 1);
}

VqAttention::VqAttention(const VqAttentionOptions& options) : AttentionHeads("vq", options.heads), options_(options) {
  options_.heads = heads();
  kernels::check(options.chunk >= 1, "vq", "chunk is ", options.chunk, "; must be at least 1");
  kernels::check(options.warmup >= 0, "vq", "warmup is ", options.warmup, "; must be at least 0");
  quantizer_ = register_module("quantizer",
                               std::make_shared<VectorQuantizer>(QuantizerOptions{.heads = heads().kv_heads,
                                                                                  .codewords = options.codewords,
                                                                                  .dim = heads().head_dim,
                                                                                  .training = options.training,
                                                                                  .no_use = options.no_use,
                                                                                  .noise = options.noise,
                                                                                  .ema_decay = options.ema_decay,
                                                                                  .commitment = options.commitment}));
  started_ = register_buffer("started", at::zeros({}, at::kLong));
  set_layout(head_layout().add("codewords", options.codewords).add("chunk", options.chunk));
}

int64_t VqAttention::state_bytes(int64_t tokens) const {
  if (tokens == 0) return 0;
  const int64_t chunk = options_.chunk, dim = heads().head_dim;
  const int64_t window = tokens <= 2 * chunk ? tokens : chunk + (tokens - 1) % chunk + 1;
  const int64_t dictionary = options_.codewords * (dim + 1) * static_cast<int64_t>(sizeof(float));
  const int64_t token = dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(int64_t));
  return heads().kv_heads * (dictionary + window * token);
}

void VqAttention::begin_step(int64_t step, uint64_t seed) {
  step_ = step;
  seed_ = seed;
}

Tensor VqAttention::training_keys(const Tensor& k) {
  if (step_ < options_.warmup) return k;
  if (const Tensor started = current(started_); started.item<int64_t>() == 0) {
    quantizer_->start_from(k);
    started.fill_(1);
  }
  const Tensor quantized = quantizer_->quantize(k, seed_);
  auxiliary_ = quantizer_->commitment_loss();
  return quantized;
}

Tensor VqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  auto [q, k, v] = project(x);
  q = unit_norm(q);
  k = unit_norm(k);
  auxiliary_ = Tensor();
  if (state != nullptr) {
    return output(
        vq_linear_attention(q, quantizer_->nearest(k), quantizer_->codewords(), v, beta(), options_.chunk, *state));
  }
  if (is_training()) return output(ops::attention(q, training_keys(k), v, beta(), 0, 0, cu_seqlens));
  const Tensor index = quantizer_->nearest(k), codewords = quantizer_->codewords();
  if (options_.form == VqForm::linear) {
    const auto one = [&](int64_t first, int64_t length) {
      MixerState fresh;
      return vq_linear_attention(q.narrow(1, first, length), index.narrow(1, first, length), codewords,
                                 v.narrow(1, first, length), beta(), options_.chunk, fresh);
    };
    std::vector<Tensor> parts;
    if (cu_seqlens) {
      for (const auto& sequence : kernels::check_sequences("vq", x.size(0), x.size(1), offsets_of(cu_seqlens)))
        parts.push_back(one(sequence.first, sequence.length));
    } else {
      parts.push_back(one(0, x.size(1)));
    }
    return output(at::cat(parts, 1));
  }
  const Tensor flat = index.permute({2, 0, 1}).reshape({codewords.size(0), -1, 1}).expand({-1, -1, codewords.size(2)});
  const Tensor quantized =
      codewords.gather(1, flat).view({codewords.size(0), k.size(0), k.size(1), k.size(3)}).permute({1, 2, 0, 3});
  return output(ops::attention(q, quantized, v, beta(), 0, 0, cu_seqlens));
}

}  // namespace ovq::nn
