// Reads a sequence in one call, then continues it one token at a time from the state that call left behind.
#include <ovq/kernels/ovq_attention.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using namespace ovq::kernels;

int main() {
  constexpr int64_t kTime = 1000, kPrompt = 900, kHeads = 2, kDim = 64;
  std::vector<float> q(kTime * kHeads * kDim), k(q.size()), v(q.size()), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = std::sin(0.1f * i);
    k[i] = std::cos(0.37f * i);
    v[i] = std::sin(0.71f * i);
  }
  const std::vector<float> beta(kHeads, 0.125f);
  const OvqOptions options{.chunk = 128, .centroids = 256};

  // Tokens first ... first + count - 1 of the sequence.
  const auto attend = [&](OvqState& state, int64_t first, int64_t count) {
    const int64_t offset = first * kHeads * kDim;
    const auto tokens = [&](auto* data) {
      return View<const float>::contiguous(data + offset, 1, count, kHeads, kDim);
    };
    ovq_attention_forward(
        {.q = tokens(q.data()), .k = tokens(k.data()), .v = tokens(v.data()), .beta = beta, .options = options},
        {.o = View<float>::contiguous(o.data() + offset, 1, count, kHeads, kDim)}, std::span(&state, 1));
  };

  OvqState state({.batch = 1, .kv_heads = kHeads, .key_dim = kDim, .value_dim = kDim}, options);
  attend(state, 0, kPrompt);
  for (int64_t t = kPrompt; t < kTime; ++t) attend(state, t, 1);
  const std::vector<float> streamed = o;

  OvqState fresh(state.shape(), options);
  attend(fresh, 0, kTime);
  std::printf("%lld tokens in %lld centroids and %lld bytes of state; ", static_cast<long long>(state.position()),
              static_cast<long long>(state.size()), static_cast<long long>(state.nbytes()));
  std::puts(streamed == o ? "streaming gave the same bits" : "streaming gave other bits");
  return streamed == o ? 0 : 1;
}
