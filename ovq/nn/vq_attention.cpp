#include "ovq/nn/vq_attention.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>

#include "ovq/base/error.h"
#include "ovq/nn/cache.h"
#include "ovq/nn/packed.h"
#include "ovq/nn/replaced.h"
#include "ovq/ops/attention.h"

namespace ovq::nn {
namespace {

// Whether this thread is in a backward pass.
bool inside_backward() { return torch::autograd::get_current_graph_task_exec_info() != nullptr; }

// A number that two tensors share if they have the same elements, and else hardly ever.
uint64_t fingerprint(const Tensor& x) {
  if (x.is_meta()) return 0;
  const Tensor flat = x.detach().to(at::kCPU, at::kFloat).contiguous();
  const auto* words = reinterpret_cast<const uint32_t*>(flat.data_ptr<float>());
  uint64_t hash = static_cast<uint64_t>(flat.numel());
  for (int64_t i = 0; i < flat.numel(); ++i) {
    hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

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

Tensor vq_linear_attention(const Tensor& given_q, const Tensor& index, const Tensor& codewords, const Tensor& given_v,
                           const Tensor& beta, int64_t chunk, MixerState& state) {
  // In the codebook's precision, also under autocast: counts outgrow eight bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor q = given_q.to(codewords.scalar_type()), v = given_v.to(codewords.scalar_type());
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
  const Tensor o = outputs.empty() ? at::zeros({batch, 0, q.size(2), v.size(3)}, q.options()) : at::cat(outputs, 1);
  return o.to(given_q.scalar_type());
}

VqAttention::VqAttention(const VqAttentionOptions& options) : AttentionHeads("vq", options.heads), options_(options) {
  options_.heads = heads();
  check_fields("vq", options_);
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
  return heads().kv_heads * (dictionary + window * token) + input_state_bytes(tokens);
}

bool VqAttention::started() const {
  const Tensor& started = current(started_);
  return started.is_meta() || started.item<int64_t>() != 0;
}

void VqAttention::start() { current(started_).fill_(1); }

void VqAttention::begin_step(int64_t step, uint64_t seed) {
  end_step();
  step_ = step;
  seed_ = seed;
  told_ = true;
}

void VqAttention::end_step() {
  if (quantizer_->end_step()) start();
  forwards_.clear();
}

void VqAttention::drop_step() {
  quantizer_->drop_step();
  forwards_.clear();
}

std::vector<Tensor> VqAttention::step_statistics(int64_t rank, int64_t ranks) {
  if (started()) return quantizer_->statistics();
  return {quantizer_->start_statistics(rank, ranks)};
}

bool VqAttention::begins_own_step() const { return is_training() && !told_ && !inside_backward(); }

Tensor VqAttention::auxiliary_loss() const {
  check(!auxiliary_.defined() || auxiliary_.requires_grad() || !at::GradMode::is_enabled(), "vq",
        "the last training forward ran without gradients, and so did its auxiliary loss, as under reentrant "
        "checkpointing; must run with them: use_reentrant=False");
  return auxiliary_;
}

Tensor VqAttention::training_keys(const Tensor& k) {
  const uint64_t keys = fingerprint(k);
  // A forward inside of backward is one that has been: activation checkpointing computes it again.
  const bool again = inside_backward();
  if (again) {
    check(forwards_.contains(keys), "vq",
          "backward computes a forward again that is not of this step; call begin_step before each training "
          "step, and nothing that changes weights before its last backward");
  } else {
    if (!told_) {
      end_step();
      seed_ = static_cast<uint64_t>(++step_);
    }
    forwards_.insert(keys);
    auxiliary_ = Tensor();
  }
  if (!started()) {
    if (!again && step_ + 1 >= options_.warmup) quantizer_->collect(k);
    return k + 0 * current(quantizer_->codebook)
                       .sum();  // a part of the graph: DistributedDataParallel waits for every gradient
  }
  const Tensor quantized = quantizer_->quantize(k, seed_ ^ keys, again ? Note::no : Note::yes);
  if (!again) auxiliary_ = quantizer_->commitment_loss();
  return quantized;
}

Tensor VqAttention::attend_unquantized(const Inputs& in, MixerState* state, const OptionalTensor& cu_seqlens) {
  if (state == nullptr) return ops::attention(in.q, in.k, in.v, beta(), 0, 0, cu_seqlens);
  check(!state->tensors.contains("counts"), "vq",
        "state is of a layer whose codebook has started; this layer's has not");
  const Tensor keys = extend_cache(state->tensors["keys"], in.k, 0);
  const Tensor values = extend_cache(state->tensors["values"], in.v, 0);
  state->position += in.q.size(1);
  return ops::attention(in.q, keys, values, beta(), 0, keys.size(1) - in.q.size(1));
}

Tensor VqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  const bool training = is_training() && state == nullptr;
  check(state == nullptr || !is_training() || !at::GradMode::is_enabled(), "vq",
        "training with a state: its keys would have no gradients; train without a state, or call eval()");
  const Inputs in = attention_inputs(x, state, cu_seqlens);
  if (training) return output(ops::attention(in.q, training_keys(in.k), in.v, beta(), 0, 0, cu_seqlens));
  if (!started()) return output(attend_unquantized(in, state, cu_seqlens));
  const Tensor index = quantizer_->nearest(in.k), codewords = quantizer_->codewords();
  if (state != nullptr) {
    check(!state->tensors.contains("keys"), "vq",
          "state is of a layer whose codebook has not started; this layer's has");
    return output(vq_linear_attention(in.q, index, codewords, in.v, beta(), options_.chunk, *state));
  }
  if (options_.form == VqForm::linear) {
    const auto one = [&](int64_t first, int64_t length) {
      MixerState fresh;
      return vq_linear_attention(in.q.narrow(1, first, length), index.narrow(1, first, length), codewords,
                                 in.v.narrow(1, first, length), beta(), options_.chunk, fresh);
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
  const Tensor quantized = codewords.gather(1, flat)
                               .view({codewords.size(0), in.k.size(0), in.k.size(1), in.k.size(3)})
                               .permute({1, 2, 0, 3});
  return output(ops::attention(in.q, quantized.to(in.q.scalar_type()), in.v, beta(), 0, 0, cu_seqlens));
}

}  // namespace ovq::nn
