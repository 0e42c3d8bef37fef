#include "bench/recurrence_loops.h"

#include <cmath>

#include "ovq/ops/gated_delta_rule/reference.h"
#include "ovq/ops/linear_attention/reference.h"
#include "ovq/ops/mesa/reference.h"
#include "ovq/ops/short_convolution/reference.h"
#include "ovq/ops/ssd/reference.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::bench {
namespace {

namespace reference = kernels::reference;
using reference::Matrix;

// The heads of all sequences of some inputs, and the place of their results.
template <class Scalar>
class HeadLoops {
 public:
  // `heads` is the number of heads of d_o [B, T, H, D].
  HeadLoops(const Tensors& inputs, const at::Tensor& d_o) : inputs_(inputs), d_o_(d_o) {
    const auto type = c10::CppTypeToScalarType<Scalar>::value;
    results_.push_back(at::zeros(d_o.sizes(), type));
    for (const at::Tensor& x : inputs) results_.push_back(at::zeros(x.sizes(), type));
  }

  // body(batch, head) for each, then the results.
  template <class Body>
  Tensors run(Body&& body) {
    for (int64_t b = 0; b < d_o_.size(0); ++b) {
      for (int64_t h = 0; h < d_o_.size(2); ++h) body(b, h);
    }
    return results_;
  }

  // What head h reads of input i, which may have fewer heads
  Matrix<Scalar> rows(size_t i, int64_t b, int64_t h) const { return rows(inputs_[i], b, h); }
  std::vector<Scalar> gate(size_t i, int64_t b, int64_t h) const {
    return rows(inputs_[i].unsqueeze(-1), b, h).data;  // [B, T, H]
  }
  Matrix<Scalar> d_o(int64_t b, int64_t h) const { return rows(d_o_, b, h); }
  // Of an input [H] or [H, n]
  std::vector<Scalar> shared(size_t i, int64_t h) const {
    const at::Tensor row = inputs_[i][h].detach().reshape({-1}).contiguous();
    return {row.data_ptr<float>(), row.data_ptr<float>() + row.numel()};
  }

  void add_output(int64_t b, int64_t h, const Matrix<Scalar>& o) { add(results_[0], b, h, o.data); }
  void add_gradient(size_t i, int64_t b, int64_t h, const Matrix<Scalar>& x) { add(results_[i + 1], b, h, x.data); }
  void add_gradient(size_t i, int64_t b, int64_t h, const std::vector<Scalar>& x) { add(results_[i + 1], b, h, x); }
  void add_shared(size_t i, int64_t h, const std::vector<Scalar>& x) { add_to(results_[i + 1][h], x); }

 private:
  int64_t head_of(const at::Tensor& x, int64_t h) const { return h / (d_o_.size(2) / x.size(2)); }
  Matrix<Scalar> rows(const at::Tensor& x, int64_t b, int64_t h) const {
    return reference::load<Scalar>(ops::view_of(x), b, head_of(x, h), 0, x.size(1));
  }
  void add(const at::Tensor& to, int64_t b, int64_t h, const std::vector<Scalar>& x) const {
    add_to(to.select(0, b).select(1, head_of(to, h)), x);
  }
  static void add_to(at::Tensor to, const std::vector<Scalar>& x) {
    to += at::tensor(x, c10::CppTypeToScalarType<Scalar>::value).reshape(to.sizes());
  }

  const Tensors& inputs_;
  const at::Tensor& d_o_;
  Tensors results_;
};

template <class Scalar>
Scalar scale_of(const Matrix<Scalar>& q) {
  return 1 / std::sqrt(static_cast<Scalar>(q.columns));
}

template <class Scalar>
Tensors gated_delta_rule(const Tensors& inputs, const at::Tensor& d_o) {
  HeadLoops<Scalar> loops(inputs, d_o);
  return loops.run([&](int64_t b, int64_t h) {
    const auto q = loops.rows(0, b, h), k = loops.rows(1, b, h), v = loops.rows(2, b, h);
    const Matrix<Scalar> none(k.columns, v.columns);
    const reference::DeltaHead<Scalar> head{q, k, v, loops.gate(3, b, h), loops.gate(4, b, h), scale_of(q), none};
    const auto forward = reference::gated_delta_rule_forward(head);
    const auto d = reference::gated_delta_rule_backward(head, forward, loops.d_o(b, h), none);
    loops.add_output(b, h, forward.o);
    loops.add_gradient(0, b, h, d.d_q);
    loops.add_gradient(1, b, h, d.d_k);
    loops.add_gradient(2, b, h, d.d_v);
    loops.add_gradient(3, b, h, d.d_g);
    loops.add_gradient(4, b, h, d.d_beta);
  });
}

template <class Scalar>
Tensors ssd(const Tensors& inputs, const at::Tensor& d_o) {
  HeadLoops<Scalar> loops(inputs, d_o);
  return loops.run([&](int64_t b, int64_t h) {
    const auto x = loops.rows(0, b, h), keys = loops.rows(3, b, h), queries = loops.rows(4, b, h);
    const Matrix<Scalar> none(keys.columns, x.columns);
    const reference::SsdHead<Scalar> head{
        x, loops.gate(1, b, h), loops.shared(2, h)[0], loops.shared(5, h)[0], keys, queries, none};
    const auto forward = reference::ssd_forward(head);
    const auto d = reference::ssd_backward(head, forward, loops.d_o(b, h), none);
    loops.add_output(b, h, forward.o);
    loops.add_gradient(0, b, h, d.d_x);
    loops.add_gradient(1, b, h, d.d_dt);
    loops.add_shared(2, h, {d.d_a});
    loops.add_gradient(3, b, h, d.d_b);
    loops.add_gradient(4, b, h, d.d_c);
    loops.add_shared(5, h, {d.d_d});
  });
}

template <class Scalar>
Tensors mesa(const Tensors& inputs, const at::Tensor& d_o) {
  HeadLoops<Scalar> loops(inputs, d_o);
  return loops.run([&](int64_t b, int64_t h) {
    const auto q = loops.rows(0, b, h), k = loops.rows(1, b, h), v = loops.rows(2, b, h);
    const Matrix<Scalar> none(k.columns, k.columns + v.columns);
    const reference::MesaHead<Scalar> head{q, k, v, loops.gate(3, b, h), loops.gate(4, b, h), loops.shared(5, h), none};
    const auto forward = reference::mesa_forward(head);
    const auto d = reference::mesa_backward(head, forward, loops.d_o(b, h), none);
    loops.add_output(b, h, forward.o);
    loops.add_gradient(0, b, h, d.d_q);
    loops.add_gradient(1, b, h, d.d_k);
    loops.add_gradient(2, b, h, d.d_v);
    loops.add_gradient(3, b, h, d.d_g);
    loops.add_gradient(4, b, h, d.d_beta);
    loops.add_shared(5, h, d.d_lambda);
  });
}

template <class Scalar>
Tensors linear_attention(const Tensors& inputs, const at::Tensor& d_o) {
  HeadLoops<Scalar> loops(inputs, d_o);
  return loops.run([&](int64_t b, int64_t h) {
    const auto q = loops.rows(0, b, h), k = loops.rows(1, b, h), v = loops.rows(2, b, h);
    const Matrix<Scalar> none(k.columns, v.columns);
    const reference::LinearHead<Scalar> head{q, k, v, loops.gate(3, b, h), scale_of(q), none};
    const auto forward = reference::linear_attention_forward(head);
    const auto d = reference::linear_attention_backward(head, forward, loops.d_o(b, h), none);
    loops.add_output(b, h, forward.o);
    loops.add_gradient(0, b, h, d.d_q);
    loops.add_gradient(1, b, h, d.d_k);
    loops.add_gradient(2, b, h, d.d_v);
    loops.add_gradient(3, b, h, d.d_g);
  });
}

template <class Scalar>
Tensors short_convolution(const Tensors& inputs, const at::Tensor& d_o) {
  // x [B, T, C] as one head; weight [C, width] as the taps [width, C].
  const Tensors as_heads{inputs[0].unsqueeze(2), inputs[1].t().contiguous()};
  const int64_t width = as_heads[1].size(0), channels = as_heads[1].size(1);
  const at::Tensor outer = d_o.unsqueeze(2);
  HeadLoops<Scalar> loops(as_heads, outer);
  Tensors results = loops.run([&](int64_t b, int64_t h) {
    Matrix<Scalar> taps(width, channels);
    for (int64_t i = 0; i < width; ++i) {
      const std::vector<Scalar> row = loops.shared(1, i);
      std::copy(row.begin(), row.end(), taps[i]);
    }
    const reference::Convolution<Scalar> in{loops.rows(0, b, h), taps, Matrix<Scalar>(1, channels),
                                            Matrix<Scalar>(width - 1, channels), /*silu=*/true};
    const auto d = reference::short_convolution_backward(in, loops.d_o(b, h));
    loops.add_output(b, h, reference::short_convolution_forward(in));
    loops.add_gradient(0, b, h, d.d_x);
    for (int64_t i = 0; i < width; ++i) {
      loops.add_shared(1, i, std::vector<Scalar>(d.d_taps[i], d.d_taps[i] + channels));
    }
  });
  return {results[0].squeeze(2), results[1].squeeze(2), results[2].t()};
}

}  // namespace

const PlainLoops gated_delta_rule_loops = {gated_delta_rule<float>, gated_delta_rule<double>};
const PlainLoops ssd_loops = {ssd<float>, ssd<double>};
const PlainLoops mesa_loops = {mesa<float>, mesa<double>};
const PlainLoops linear_attention_loops = {linear_attention<float>, linear_attention<double>};
const PlainLoops short_convolution_loops = {short_convolution<float>, short_convolution<double>};

}  // namespace ovq::bench
