#include "ovq/nn/vq_attention.h"

#include "ovq/base/error.h"
#include "ovq/nn/cache.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/vector_quantize/torch.h"
#include "ovq/ops/vq_linear_attention/torch.h"

namespace ovq::nn {
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

int64_t VqAttention::state_bytes(int64_t tokens, kernels::StateDtype) const {
  if (tokens == 0) return 0;
  const int64_t chunk = options_.chunk, dim = heads().head_dim;
  const int64_t window = tokens <= 2 * chunk ? tokens : chunk + (tokens - 1) % chunk + 1;
  const int64_t dictionary = options_.codewords * (dim + 1) * static_cast<int64_t>(sizeof(float));
  const int64_t token = dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(int64_t));
  return heads().kv_heads * (dictionary + window * token) + input_state_bytes(tokens);
}

bool VqAttention::started() const { return started_.is_meta() || started_.item<int64_t>() != 0; }

void VqAttention::start() { started_.fill_(1); }

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

bool VqAttention::begins_own_step() const { return is_training() && !told_ && !ops::inside_backward(); }

Tensor VqAttention::auxiliary_loss() const {
  check(!auxiliary_.defined() || auxiliary_.requires_grad() || !at::GradMode::is_enabled(), "vq",
        "the last training forward ran without gradients, and so did its auxiliary loss, as under reentrant "
        "checkpointing; must run with them: use_reentrant=False");
  return auxiliary_;
}

Tensor VqAttention::training_keys(const Tensor& k) {
  const uint64_t keys = ops::fingerprint(k);
  // A forward inside backward repeats an earlier one: activation checkpointing computes it again.
  const bool again = ops::inside_backward();
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
    return k + 0 * quantizer_->codebook
                       .sum();  // keeps the codebook in the graph: DistributedDataParallel waits for its gradient
  }
  const Tensor quantized = quantizer_->quantize(k, seed_ ^ keys, again ? Note::no : Note::yes);
  if (!again) auxiliary_ = quantizer_->commitment_loss();
  return quantized;
}

Tensor VqAttention::attend_unquantized(const Inputs& in, MixerState* state, const OptionalTensor& cu_seqlens) {
  if (state == nullptr) return ops::attention(in.q, in.k, in.v, beta(), 0, 0, cu_seqlens);
  check(!state->tensors.contains("counts"), "vq",
        "state is of a layer whose codebook has started; this layer's has not");
  CacheRollback rollback(*state, /*grows=*/true);
  const Tensor keys = extend_cache(state->tensors["keys"], in.k, 0);
  const Tensor values = extend_cache(state->tensors["values"], in.v, 0);
  Tensor o = ops::attention(in.q, keys, values, beta(), 0, keys.size(1) - in.q.size(1));
  rollback.keep();
  state->position += in.q.size(1);
  return o;
}

// The mixer's state holds the state of ops::vq_linear_attention.
Tensor VqAttention::attend_codewords(const Inputs& in, const Tensor& index, const Tensor& codewords,
                                     MixerState& state) {
  auto& tensors = state.tensors;
  ops::VqState inside{state.tensor("counts"), state.tensor("means"), state.tensor("index"), state.tensor("values"),
                      state.position};
  const Tensor o = ops::vq_linear_attention(in.q, index, codewords, in.v, beta(), options_.chunk, inside);
  tensors["counts"] = inside.counts;
  tensors["means"] = inside.means;
  tensors["index"] = inside.index;
  tensors["values"] = inside.values;
  state.position = inside.position;
  return o;
}

Tensor VqAttention::mix(const Tensor& x, MixerState* state, const OptionalTensor& cu_seqlens) {
  const bool training = is_training() && state == nullptr;
  check(state == nullptr || !is_training() || !at::GradMode::is_enabled(), "vq",
        "training with a state: its keys would have no gradients; train without a state, or call eval()");
  const Inputs in = attention_inputs(x, state, cu_seqlens);
  const auto kept = [&](const Tensor& o) {
    if (state != nullptr) carry_on(in, *state);
    return output(o);
  };
  if (training) return output(ops::attention(in.q, training_keys(in.k), in.v, beta(), 0, 0, cu_seqlens));
  if (!started()) return kept(attend_unquantized(in, state, cu_seqlens));
  const Tensor index = quantizer_->nearest(in.k), codewords = quantizer_->codewords();
  if (state != nullptr) {
    check(!state->tensors.contains("keys"), "vq",
          "state is of a layer whose codebook has not started; this layer's has");
    return kept(attend_codewords(in, index, codewords, *state));
  }
  if (options_.form == VqForm::linear) {
    const auto one = [&](int64_t first, int64_t length) {
      const auto part = [&](const Tensor& y) { return y.narrow(1, first, length); };
      ops::VqState fresh;
      return ops::vq_linear_attention(part(in.q), part(index), codewords, part(in.v), beta(), options_.chunk, fresh);
    };
    std::vector<Tensor> parts;
    if (cu_seqlens) {
      for (const auto& sequence :
           kernels::check_sequences("vq", x.size(0), x.size(1), ops::offsets_of("vq", cu_seqlens))) {
        parts.push_back(one(sequence.first, sequence.length));
      }
    } else {
      parts.push_back(one(0, x.size(1)));
    }
    return output(parts.empty() ? in.q : at::cat(parts, 1));  // no sequences, no tokens
  }
  const Tensor flat = index.permute({2, 0, 1}).reshape({codewords.size(0), -1});
  const Tensor quantized = ops::by_token(ops::gather_rows(codewords, flat), x.size(0), x.size(1));
  return output(ops::attention(in.q, quantized.to(in.q.scalar_type()), in.v, beta(), 0, 0, cu_seqlens));
}

}  // namespace ovq::nn
