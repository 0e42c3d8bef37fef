#include "bench/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/paper_baseline.h"
#include "bench/tensor.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/attention/attention.h"
#include "ovq/ops/attention/reference.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/reference.h"

namespace ovq::bench {
namespace {

namespace reference = kernels::reference;
using kernels::OvqInputs;
using kernels::OvqOptions;
using kernels::View;
using reference::Matrix;

// Compares a tensor of the code under test with that of the plain loops, over all heads.
class TensorCheck {
 public:
  explicit TensorCheck(std::string name) : name_(std::move(name)) {}

  void add(View<const float> fast, int64_t head, const Matrix<double>& exact, const Matrix<float>& plain) {
    for (int64_t t = 0; t < exact.rows; ++t) add(fast.row(0, t, head), exact[t], plain[t], exact.columns);
  }
  void add(const float* fast, const double* exact, const float* plain, int64_t count) {
    for (int64_t i = 0; i < count; ++i) calibration_.add(fast[i], plain[i], exact[i]);
  }
  void add_magnitude(double magnitude) { calibration_.add_magnitude(magnitude); }
  void require() const { require_calibrated(calibration_, name_); }

 private:
  std::string name_;
  Calibration calibration_;
};

// d_beta is a sum of q . d_q / beta over the tokens; this is the sum of their absolute values.
double d_beta_magnitude(View<const float> q, int64_t head, float beta, const Matrix<double>& d_q) {
  const auto rows = reference::load<double>(q, 0, head, 0, d_q.rows);
  double sum = 0;
  for (int64_t t = 0; t < d_q.rows; ++t) sum += std::abs(reference::dot(rows[t], d_q[t], d_q.columns) / beta);
  return sum;
}

template <class Scalar>
struct AttentionTwin {
  reference::AttentionHeadResult<Scalar> forward;
  reference::AttentionHeadGradients<Scalar> gradients;

  AttentionTwin(const kernels::AttentionInputs& inputs, View<const float> d_o, int64_t h) {
    const int64_t time = inputs.q.time;
    const reference::AttentionHead<Scalar> head{.q = reference::load<Scalar>(inputs.q, 0, h, 0, time),
                                                .k = reference::load<Scalar>(inputs.k, 0, h, 0, time),
                                                .v = reference::load<Scalar>(inputs.v, 0, h, 0, time),
                                                .beta = inputs.beta[h],
                                                .window = inputs.window};
    forward = reference::attention_forward(head);
    gradients = reference::attention_backward(head, forward, reference::load<Scalar>(d_o, 0, h, 0, time));
  }
};

// Runs the plain loops for one head with given assignments; fills `gradients` only if there is a d_o.
template <class Scalar>
struct OvqTwin {
  reference::OvqHeadResult<Scalar> forward;
  reference::OvqHeadGradients<Scalar> gradients;

  OvqTwin(const OvqInputs& inputs, std::span<const int32_t> assignments, View<const float> d_o, int64_t h) {
    const int64_t time = inputs.q.time;
    std::vector<int32_t> forced(time);
    for (int64_t t = 0; t < time; ++t) forced[t] = assignments[t * inputs.k.heads + h];
    const auto head = reference::load_head<Scalar>(inputs, 0, h, 0, time);
    const auto initial = reference::empty_state<Scalar>(inputs.k.dim, inputs.v.dim);
    forward = reference::ovq_attention_forward(head, initial, forced);
    if (d_o.data != nullptr)
      gradients =
          reference::ovq_attention_backward(head, initial, forward, {reference::load<Scalar>(d_o, 0, h, 0, time)});
  }
};

template <class Twin>
std::vector<Twin> for_each_head(int64_t heads, const std::function<Twin(int64_t)>& make) {
  std::vector<std::optional<Twin>> made(heads);
  kernels::parallel_for(heads, kernels::max_threads(), [&](int64_t h, int) { made[h].emplace(make(h)); });
  std::vector<Twin> twins;
  for (auto& twin : made) twins.push_back(std::move(*twin));
  return twins;
}

struct OvqTwins {
  std::vector<OvqTwin<double>> exact;
  std::vector<OvqTwin<float>> plain;

  OvqTwins(const OvqInputs& inputs, std::span<const int32_t> assignments, View<const float> d_o = {})
      : exact(for_each_head<OvqTwin<double>>(inputs.k.heads,
                                             [&](int64_t h) { return OvqTwin<double>(inputs, assignments, d_o, h); })),
        plain(for_each_head<OvqTwin<float>>(inputs.k.heads,
                                            [&](int64_t h) { return OvqTwin<float>(inputs, assignments, d_o, h); })) {}
};

// Forced assignments must name existing centroids.
void require_valid(const OvqInputs& inputs, std::span<const int32_t> assignments) {
  const int64_t chunk = inputs.options.chunk, heads = inputs.k.heads;
  int64_t size = 0;
  for (int64_t begin = 0; begin + chunk <= inputs.k.time; begin += chunk) {
    const int64_t after = size + kernels::new_centroid_count(inputs.options, size, begin + chunk);
    for (const int32_t assigned : assignments.subspan(begin * heads, chunk * heads)) {
      const int64_t first = assigned < 0 ? size : 0, end = assigned < 0 || size == 0 ? after : size;
      const int64_t centroid = assigned < 0 ? ~int64_t{assigned} : assigned;
      if (centroid < first || centroid >= end)
        throw Mismatch(
            fmt::format("assignment {} in the chunk at token {}, of {} to {} centroids", assigned, begin, size, after));
    }
    size = after;
  }
}

// Forced assignments would hide a search that does not search. So this checks that every token of a written chunk
// joined a centroid with the greatest similarity, and that only the least similar keys became new centroids.
void require_nearest(const OvqInputs& inputs, const reference::OvqHeadResult<double>& forward, int64_t head) {
  constexpr double kSlack = 1e-5;
  const int64_t chunk = inputs.options.chunk;
  const auto keys = reference::load<double>(inputs.k, 0, head, 0, inputs.k.time);
  // Orders the tokens; the smallest become new centroids.
  const auto rank = [&](int64_t t, double best) {
    if (!inputs.options.weighted) return best;
    return -reference::FounderScore<double>(*inputs.weights.row(0, t, head), best).score;
  };
  for (int64_t begin = 0; begin + chunk <= keys.rows; begin += chunk) {
    const auto& dictionary = forward.dictionaries[begin / chunk];
    if (dictionary.size() == 0) continue;
    double last_founder = -std::numeric_limits<double>::infinity();
    double first_member = std::numeric_limits<double>::infinity();
    int64_t founders = 0;
    for (int64_t t = begin; t < begin + chunk; ++t) {
      std::vector<double> similarity;
      for (int64_t n = 0; n < dictionary.size(); ++n)
        similarity.push_back(reference::dot(keys[t], dictionary.keys[n], keys.columns));
      const double best = *std::max_element(similarity.begin(), similarity.end());
      const int32_t assigned = forward.assignments[t];
      if (assigned < 0) {
        ++founders;
        last_founder = std::max(last_founder, rank(t, best));
      } else {
        first_member = std::min(first_member, rank(t, best));
        if (!(similarity.at(assigned) >= best - kSlack))
          throw Mismatch(fmt::format("token {} of head {} did not join its nearest centroid", t, head));
      }
    }
    if (founders != kernels::new_centroid_count(inputs.options, dictionary.size(), begin + chunk))
      throw Mismatch(fmt::format("the chunk at token {} founded {} centroids", begin, founders));
    if (!(last_founder <= first_member + kSlack))
      throw Mismatch(fmt::format("the chunk at token {} founded centroids from the wrong keys", begin));
  }
}

void require_output(const OvqInputs& inputs, View<const float> o, const OvqTwins& twins) {
  TensorCheck output("o");
  for (int64_t h = 0; h < inputs.q.heads; ++h)
    output.add(o, h, twins.exact[h].forward.o[0], twins.plain[h].forward.o[0]);
  output.require();
  for (int64_t h = 0; h < inputs.k.heads; ++h) require_nearest(inputs, twins.exact[h].forward, h);
}

OvqInputs make_inputs(const Inputs& inputs, const OvqOptions& options) {
  return {.q = inputs.q.view(),
          .k = inputs.k.view(),
          .v = inputs.v.view(),
          .beta = inputs.beta,
          .weights = options.weighted ? inputs.weights.view() : View<float>{},
          .options = options};
}

}  // namespace

void require_calibrated(const Calibration& calibration, const std::string& name) {
  if (!calibration.holds())
    throw Mismatch(fmt::format("{} is off by {:.2g}, allowed {:.2g}", name, calibration.error(), calibration.bound()));
}

Shape checked_shape(Shape shape, int64_t chunk) {
  constexpr int64_t kOdd = 3;
  shape.time = 2 * chunk + chunk / 2 + kOdd;
  shape.batch = 1;
  return shape;
}

void require_attention(const kernels::AttentionInputs& inputs, View<const float> d_o, View<const float> o,
                       const kernels::AttentionGradients& gradients) {
  const int64_t heads = inputs.q.heads;
  const auto exact =
      for_each_head<AttentionTwin<double>>(heads, [&](int64_t h) { return AttentionTwin<double>(inputs, d_o, h); });
  const auto plain =
      for_each_head<AttentionTwin<float>>(heads, [&](int64_t h) { return AttentionTwin<float>(inputs, d_o, h); });
  TensorCheck of_o("o"), of_q("d_q"), of_k("d_k"), of_v("d_v"), of_beta("d_beta");
  for (int64_t h = 0; h < heads; ++h) {
    of_o.add(o, h, exact[h].forward.o, plain[h].forward.o);
    of_q.add(gradients.d_q, h, exact[h].gradients.d_q, plain[h].gradients.d_q);
    of_k.add(gradients.d_k, h, exact[h].gradients.d_k, plain[h].gradients.d_k);
    of_v.add(gradients.d_v, h, exact[h].gradients.d_v, plain[h].gradients.d_v);
    of_beta.add_magnitude(d_beta_magnitude(inputs.q, h, inputs.beta[h], exact[h].gradients.d_q));
    of_beta.add(&gradients.d_beta[h], &exact[h].gradients.d_beta, &plain[h].gradients.d_beta, 1);
  }
  for (const TensorCheck* check : {&of_o, &of_q, &of_k, &of_v, &of_beta}) check->require();
}

void require_ovq(const OvqInputs& inputs, std::span<const int32_t> assignments, View<const float> d_o,
                 View<const float> o, const kernels::OvqGradients& gradients) {
  require_valid(inputs, assignments);
  const OvqTwins twins(inputs, assignments, d_o);
  require_output(inputs, o, twins);
  TensorCheck of_q("d_q"), of_k("d_k"), of_v("d_v"), of_beta("d_beta"), of_weights("d_weights");
  for (int64_t h = 0; h < inputs.k.heads; ++h) {
    const auto& exact = twins.exact[h].gradients;
    const auto& plain = twins.plain[h].gradients;
    of_q.add(gradients.d_q, h, exact.d_q[0], plain.d_q[0]);
    of_k.add(gradients.d_k, h, exact.d_k, plain.d_k);
    of_v.add(gradients.d_v, h, exact.d_v, plain.d_v);
    of_beta.add_magnitude(d_beta_magnitude(inputs.q, h, inputs.beta[h], exact.d_q[0]));
    of_beta.add(&gradients.d_beta[h], exact.d_beta.data(), plain.d_beta.data(), 1);
    for (int64_t t = 0; inputs.options.weighted && t < inputs.k.time; ++t) {
      of_weights.add(gradients.d_weights.row(0, t, h), &exact.d_weights[t], &plain.d_weights[t], 1);
    }
  }
  for (const TensorCheck* check : {&of_q, &of_k, &of_v, &of_beta, &of_weights}) check->require();
}

void check_attention(const Shape& shape, int64_t window) {
  const Inputs tensors(shape, 1);
  const Tensor d_o = normal(shape, 9);
  const Tensor o(shape), lse = per_row(shape);
  const kernels::AttentionInputs inputs{
      .q = tensors.q.view(), .k = tensors.k.view(), .v = tensors.v.view(), .beta = tensors.beta, .window = window};
  kernels::attention_forward(inputs, {.o = o.view(), .lse = lse.view()});
  Gradients memory(shape);
  const kernels::AttentionGradients gradients{
      .d_q = memory.q.view(), .d_k = memory.k.view(), .d_v = memory.v.view(), .d_beta = memory.beta};
  kernels::attention_backward(inputs, {.o = o.view(), .lse = lse.view()}, d_o.view(), gradients);
  require_attention(inputs, d_o.view(), o.view(), gradients);
}

void check_ovq(const Shape& shape, const OvqOptions& options) {
  const Inputs tensors(shape, 2);
  const Tensor d_o = normal(shape, 9);
  const Tensor o(shape), lse = per_row(shape);
  const OvqInputs inputs = make_inputs(tensors, options);
  std::vector<int32_t> assignments(kernels::ovq_assignment_count(inputs));
  kernels::ovq_attention_forward(inputs, {.o = o.view(), .lse = lse.view(), .assignments = assignments});
  Gradients gradients(shape);
  kernels::ovq_attention_backward(inputs, {.o = o.view(), .lse = lse.view(), .assignments = assignments},
                                  {.d_o = d_o.view()}, gradients.of_ovq());
  require_ovq(inputs, assignments, d_o.view(), o.view(), gradients.of_ovq());
}

void check_ovq_decode(const Shape& shape, const OvqOptions& options) {
  const Inputs tensors(shape, 3);
  const Tensor o(shape);
  const OvqInputs inputs = make_inputs(tensors, options);
  kernels::OvqState state({.batch = 1, .kv_heads = shape.heads, .key_dim = shape.dim, .value_dim = shape.dim}, options);
  // A token's assignment is known once its chunk is complete; it is returned with those of the pending tokens before
  // it.
  std::vector<int32_t> assignments(shape.time * shape.heads, kernels::kUnassigned);
  for (int64_t t = 0; t < shape.time; ++t) {
    OvqInputs token = inputs;
    token.q = tensors.q.slice(t, 1);
    token.k = tensors.k.slice(t, 1);
    token.v = tensors.v.slice(t, 1);
    const int64_t first = t - state.pending();
    kernels::ovq_attention_forward(
        token,
        {.o = o.slice(t, 1),
         .assignments = std::span(assignments).subspan(first * shape.heads, (t + 1 - first) * shape.heads)},
        std::span(&state, 1));
  }
  require_valid(inputs, assignments);
  require_output(inputs, o.view(), OvqTwins(inputs, assignments));
}

void check_ovq_rounded_decode(const Shape& shape, const OvqOptions& options) {
  using kernels::StateDtype;
  const Inputs tensors(shape, 3);
  const Tensor o(shape), expected(shape);
  const OvqInputs inputs = make_inputs(tensors, options);
  const kernels::OvqShape of_state{.batch = 1, .kv_heads = shape.heads, .key_dim = shape.dim, .value_dim = shape.dim};
  kernels::OvqState narrow(of_state, options, StateDtype::bfloat16), wide(of_state, options);
  const auto read = [&](int64_t first, int64_t count, const Tensor& to, kernels::OvqState& state) {
    OvqInputs part = inputs;
    part.q = tensors.q.slice(first, count);
    part.k = tensors.k.slice(first, count);
    part.v = tensors.v.slice(first, count);
    kernels::ovq_attention_forward(part, {.o = to.slice(first, count)}, std::span(&state, 1));
  };
  for (int64_t t = 0; t < shape.time; ++t) read(t, 1, o, narrow);
  for (int64_t first = 0; first < shape.time; first += options.chunk) {
    read(first, std::min(options.chunk, shape.time - first), expected, wide);
    wide = wide.to(StateDtype::bfloat16).to(StateDtype::float32);
  }
  for (int64_t t = 0; t < shape.time; ++t) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const float *actual = o.view().row(0, t, h), *exact = expected.view().row(0, t, h);
      if (std::equal(actual, actual + shape.dim, exact)) continue;
      throw Mismatch(fmt::format("token {}, head {} differs from float32 with rounded writes", t, h));
    }
  }
}

void check_paper_baseline(const Shape& shape, const OvqOptions& options) {
  const Inputs tensors(shape, 4);
  const Tensor o(shape);
  const OvqInputs inputs = make_inputs(tensors, options);
  std::vector<int32_t> assignments(kernels::ovq_assignment_count(inputs));
  paper_ovq_forward(inputs, o.view(), assignments);
  require_valid(inputs, assignments);
  require_output(inputs, o.view(), OvqTwins(inputs, assignments));
}

}  // namespace ovq::bench
