// A language model of the installed library: reads a prompt, goes on from its state, one token at a time.
#include <ovq/models/language_model.h>
#include <ovq/models/presets.h>

#include <cstdio>

int main() {
  const torch::NoGradGuard no_grad;
  const auto model = ovq::models::make_model(ovq::models::model_preset("tiny/sw-ovq").config, 1);
  model->eval();
  const at::Tensor tokens = at::randint(128, {1, 100}, at::kLong);
  const at::Tensor whole = model->forward(tokens);

  ovq::models::ModelState state;
  at::Tensor last = model->forward(tokens.narrow(1, 0, 90), state);
  for (int64_t t = 90; t < 100; ++t) last = model->forward(tokens.narrow(1, t, 1), state);
  const bool same = at::allclose(last.select(1, -1), whole.select(1, -1), 1e-3, 1e-4);
  std::printf("%lld tokens, %lld bytes of state; streaming gave %s logits\n", static_cast<long long>(state.position()),
              static_cast<long long>(state.nbytes()), same ? "the same" : "other");
  return same ? 0 : 1;
}
