// The kernels alone, without PyTorch: reads a prompt in one call, then continues one token at a time from the state
// that call left behind. Finally reads everything in one call and compares: the outputs have the same bits.
#include <ovq/ops/ovq_attention/ovq_attention.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using namespace ovq::kernels;

constexpr int64_t kTime = 1000, kPrompt = 900, kHeads = 2, kDim = 64;

struct Tokens {
  std::vector<float> q, k, v, o;  // [time, heads, dim]
};

Tokens make_sequence() {
  Tokens s;
  for (int i = 0; i < kTime * kHeads * kDim; ++i) {
    s.q.push_back(std::sin(0.1f * i));
    s.k.push_back(std::cos(0.37f * i));
    s.v.push_back(std::sin(0.71f * i));
  }
  s.o.resize(s.q.size());
  return s;
}

// Reads tokens first ... first + count - 1 and writes their outputs; the state then includes these tokens.
void attend(OvqState& state, Tokens& s, int64_t first, int64_t count) {
  static const std::vector<float> beta(kHeads, 0.125f);
  const auto tokens = [&](std::vector<float>& x) {
    return View<float>::contiguous(x.data() + first * kHeads * kDim, 1, count, kHeads, kDim);
  };
  ovq_attention_forward(
      {.q = tokens(s.q), .k = tokens(s.k), .v = tokens(s.v), .beta = beta, .options = state.options()},
      {.o = tokens(s.o)}, std::span(&state, 1));
}

int main() {
  Tokens s = make_sequence();
  const OvqOptions options{.chunk = 128, .centroids = 256};
  OvqState state({.batch = 1, .kv_heads = kHeads, .key_dim = kDim, .value_dim = kDim}, options);
  attend(state, s, 0, kPrompt);
  for (int64_t t = kPrompt; t < kTime; ++t) attend(state, s, t, 1);
  const std::vector<float> streamed = s.o;

  OvqState fresh(state.shape(), options);
  attend(fresh, s, 0, kTime);
  const bool same = streamed == s.o;
  std::printf("%lld tokens in %lld centroids and %lld bytes of state; streaming gave %s bits\n",
              static_cast<long long>(state.position()), static_cast<long long>(state.size()),
              static_cast<long long>(state.nbytes()), same ? "the same" : "other");
  return same ? 0 : 1;
}
