#include "ovq/ops/projections/torch.h"

#include <algorithm>
#include <memory>

#include "ovq/base/error.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/projections/projections.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/packed.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::Shift;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kProjections = "projections";

// A part's places in the list of tensors that autograd sees, and in that of the results: -1 where it has none.
struct PartPlan {
  int64_t first = 0, channels = 0, head_dim = 0;
  int64_t taps = -1, taps_bias = -1, share = -1, angles = -1, inputs_before = -1, row_before = -1;
  int64_t width = 1;  // of the convolution
  bool silu = false;
  c10::optional<double> unit_eps;
  Shift shift = Shift::none;
  int64_t inputs_after = -1, row_after = -1;
};

struct ProjectionsPlan {
  std::vector<int64_t> weights, biases;  // places, -1 where there is none
  std::vector<PartPlan> parts;
  std::vector<int64_t> cu_seqlens;
  int64_t channels = 0, results = 0;
  bool wants_weights = false;

  int64_t sequences(int64_t batch) const { return cu_seqlens.empty() ? batch : std::ssize(cu_seqlens) - 1; }
};
using PlanPtr = std::shared_ptr<const ProjectionsPlan>;

std::span<const float> span_at(at::TensorList tensors, int64_t place) {
  return place < 0 ? std::span<const float>() : span_of(tensors[place]);
}
std::span<float> span_or_empty(const Tensor& x) { return x.defined() ? span_of(x) : std::span<float>(); }

std::vector<kernels::ProjectionPart> parts_of(const ProjectionsPlan& plan, at::TensorList tensors) {
  std::vector<kernels::ProjectionPart> parts;
  for (const PartPlan& part : plan.parts) {
    parts.push_back(
        {.channels = part.channels,
         .head_dim = part.head_dim,
         .taps = span_at(tensors, part.taps),
         .taps_bias = span_at(tensors, part.taps_bias),
         .silu = part.silu,
         .unit_eps = part.unit_eps ? std::optional<float>(static_cast<float>(*part.unit_eps)) : std::nullopt,
         .shift = part.shift,
         .share = part.share < 0 ? 0.0f : *tensors[part.share].data_ptr<float>(),
         .angles = span_at(tensors, part.angles),
         .inputs_before = span_at(tensors, part.inputs_before),
         .row_before = span_at(tensors, part.row_before)});
  }
  return parts;
}

// y [rows, channels], what x became -> the parts [B, T, channels], then what they carry on
variable_list results_of(const ProjectionsPlan& plan, at::TensorList tensors, const Tensor& y, int64_t batch,
                         int64_t time) {
  RECORD_USER_SCOPE("ovq::projections_forward");
  use_torch_threads();
  variable_list results(static_cast<size_t>(plan.results));
  std::vector<kernels::ProjectionOutputs> outputs;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const PartPlan& part = plan.parts[i];
    const auto add = [&](int64_t place, int64_t rows) {
      if (place < 0) return std::span<float>();
      results[place] = at::empty({batch, rows, part.channels}, y.options());
      return span_of(results[place]);
    };
    outputs.push_back({.o = add(static_cast<int64_t>(i), time),
                       .inputs_after = add(part.inputs_after, part.width - 1),
                       .row_after = add(part.row_after, 1)});
  }
  const std::vector<kernels::ProjectionPart> parts = parts_of(plan, tensors);
  kernels::projection_rows(
      {.y = span_of(y), .batch = batch, .time = time, .parts = parts, .cu_seqlens = plan.cu_seqlens}, outputs);
  return results;
}

variable_list at_places(at::TensorList tensors, const std::vector<int64_t>& places) {
  variable_list all;
  for (const int64_t place : places) all.push_back(tensors[place]);
  return all;
}

// One row of all of them. Undefined if there are none.
Tensor stacked_biases(const ProjectionsPlan& plan, at::TensorList tensors) {
  if (std::all_of(plan.biases.begin(), plan.biases.end(), [](int64_t place) { return place < 0; })) return {};
  variable_list all;
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    const int64_t place = plan.biases[i];
    all.push_back(place >= 0 ? tensors[place] : at::zeros({tensors[plan.weights[i]].size(0)}, tensors[0].options()));
  }
  return at::cat(all);
}

Tensor for_each_row(const Tensor& bias, int64_t rows) { return bias.defined() ? bias.expand({rows, -1}) : Tensor(); }

// Without gradients: nothing is kept, and no weight is copied.
variable_list inferred_projections(const ProjectionsPlan& plan, at::TensorList tensors) {
  const Tensor& x = tensors[0];
  const Tensor rows = x.view({x.size(0) * x.size(1), x.size(2)});
  const Tensor bias = for_each_row(stacked_biases(plan, tensors), rows.size(0));
  const Tensor y = rows_times_stored(rows, at_places(tensors, plan.weights), bias);
  return results_of(plan, tensors, y, x.size(0), x.size(1));
}

class ProjectionsFunction : public OnceDifferentiable<ProjectionsFunction> {
 public:
  static constexpr const char* kOp = kProjections;

  // tensors[0] is x.
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const PlanPtr& plan) {
    const Tensor& x = tensors[0];
    const int64_t batch = x.size(0), time = x.size(1);
    const Tensor rows = x.view({batch * time, x.size(2)}), matrix = stacked(tensors, plan->weights);
    const Tensor y = rows_times_transposed(rows, matrix, for_each_row(stacked_biases(*plan, tensors), rows.size(0)));
    variable_list saved = {rows, matrix, y};
    saved.insert(saved.end(), tensors.begin() + 1, tensors.end());
    context->save_for_backward(saved);
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(plan));
    context->saved_data["batch"] = batch;
    context->saved_data["time"] = time;
    context->set_materialize_grads(false);
    return results_of(*plan, tensors, y, batch, time);
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["plan"].toCapsule();
    const ProjectionsPlan& plan = *static_cast<const Holder&>(*capsule).plan;
    const int64_t batch = context->saved_data["batch"].toInt(), time = context->saved_data["time"].toInt();
    variable_list tensors = context->get_saved_variables();
    const Tensor rows = tensors[0], matrix = tensors[1], y = tensors[2];
    tensors.erase(tensors.begin(), tensors.begin() + 2);  // places count from x, which only shapes the result
    variable_list results(tensors.size() + 1);
    const Tensor d_y = at::empty(y.sizes(), y.options());
    {
      RECORD_USER_SCOPE("ovq::projections_backward");
      rows_backward(plan, tensors, y, batch, time, gradients, d_y, results);
    }
    results[0] = rows_times(d_y, matrix).view({batch, time, rows.size(1)});
    if (plan.wants_weights) {
      const Tensor d_matrix = columns_times_rows(d_y, rows);
      int64_t first = 0;
      for (size_t i = 0; i < plan.weights.size(); ++i) {
        const int64_t channels = tensors[plan.weights[i]].size(0);
        if (has_gradient(plan, gradients, first, channels)) {
          results[plan.weights[i]] = d_matrix.narrow(0, first, channels);
          if (plan.biases[i] >= 0) results[plan.biases[i]] = d_y.narrow(1, first, channels).sum(0);
        }
        first += channels;
      }
    }
    return results;
  }

 private:
  struct Holder : torch::CustomClassHolder {
    explicit Holder(PlanPtr from) : plan(std::move(from)) {}
    PlanPtr plan;
  };

  static Tensor stacked(at::TensorList tensors, const std::vector<int64_t>& places) {
    if (places.size() == 1) return tensors[places[0]];
    return at::cat(at_places(tensors, places));
  }

  static bool has_gradient(const ProjectionsPlan& plan, const variable_list& gradients, size_t part) {
    const PartPlan& p = plan.parts[part];
    const auto defined = [&](int64_t place) { return place >= 0 && gradients[place].defined(); };
    return gradients[part].defined() || defined(p.inputs_after) || defined(p.row_after);
  }

  // Whether any part among these channels has one. What has none, as keys that are only searched with, leaves its
  // weight without one, too.
  static bool has_gradient(const ProjectionsPlan& plan, const variable_list& gradients, int64_t first,
                           int64_t channels) {
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const PartPlan& part = plan.parts[i];
      const bool overlaps = part.first < first + channels && first < part.first + part.channels;
      if (overlaps && has_gradient(plan, gradients, i)) return true;
    }
    return false;
  }

  // d_y, and in `results` the gradients of convolutions, shares and what was carried.
  static void rows_backward(const ProjectionsPlan& plan, const variable_list& tensors, const Tensor& y, int64_t batch,
                            int64_t time, const variable_list& d_results, const Tensor& d_y, variable_list& results) {
    use_torch_threads();
    const int64_t sequences = plan.sequences(batch);
    const auto contiguous = [&](int64_t place) {
      return place >= 0 && d_results[place].defined() ? d_results[place].contiguous() : Tensor();
    };
    struct PartTensors {
      Tensor d_o, d_inputs_after, d_row_after, d_taps, d_taps_bias, d_inputs_before, d_row_before;
    };
    std::vector<PartTensors> own;
    std::vector<kernels::ProjectionGradients> gradients;
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const PartPlan& part = plan.parts[i];
      const auto like = [&](int64_t place) {
        return place < 0 ? Tensor() : at::empty(tensors[place].sizes(), y.options());
      };
      PartTensors t{.d_o = contiguous(static_cast<int64_t>(i)),
                    .d_inputs_after = contiguous(part.inputs_after),
                    .d_row_after = contiguous(part.row_after),
                    .d_inputs_before = like(part.inputs_before),
                    .d_row_before = like(part.row_before)};
      if (!t.d_o.defined()) t.d_o = at::zeros({batch, time, part.channels}, y.options());
      if (part.taps >= 0) t.d_taps = at::empty({sequences, part.width, part.channels}, y.options());
      if (part.taps_bias >= 0) t.d_taps_bias = at::empty({sequences, part.channels}, y.options());
      gradients.push_back({.d_o = span_of(t.d_o),
                           .d_inputs_after = span_or_empty(t.d_inputs_after),
                           .d_row_after = span_or_empty(t.d_row_after),
                           .d_taps = span_or_empty(t.d_taps),
                           .d_taps_bias = span_or_empty(t.d_taps_bias),
                           .d_inputs_before = span_or_empty(t.d_inputs_before),
                           .d_row_before = span_or_empty(t.d_row_before)});
      own.push_back(std::move(t));
    }
    const std::vector<kernels::ProjectionPart> parts = parts_of(plan, tensors);
    kernels::projection_rows_backward(
        {.y = span_of(y), .batch = batch, .time = time, .parts = parts, .cu_seqlens = plan.cu_seqlens}, gradients,
        span_of(d_y));
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      if (!has_gradient(plan, d_results, i)) continue;
      const PartPlan& part = plan.parts[i];
      if (part.taps >= 0) results[part.taps] = own[i].d_taps.sum(0).t().contiguous();
      if (part.taps_bias >= 0) results[part.taps_bias] = own[i].d_taps_bias.sum(0);
      if (part.share >= 0)
        results[part.share] = at::full(tensors[part.share].sizes(), gradients[i].d_share, y.options());
      if (part.inputs_before >= 0) results[part.inputs_before] = own[i].d_inputs_before;
      if (part.row_before >= 0) results[part.row_before] = own[i].d_row_before;
    }
  }
};

void check_inputs(const ProjectionsInputs& in) {
  check(in.x.dim() == 3, kProjections, "x has ", in.x.dim(), " dimensions; must have 3: [batch, time, width]");
  check(in.biases.empty() || in.biases.size() == in.weights.size(), kProjections, "biases has ", in.biases.size(),
        "; must be one per weight, ", in.weights.size());
  int64_t rows = 0, channels = 0;
  for (const Tensor& weight : in.weights) {
    check(weight.dim() == 2 && weight.size(1) == in.x.size(2), kProjections, "a weight has shape ", weight.sizes(),
          "; must be [outputs, ", in.x.size(2), "]");
    rows += weight.size(0);
  }
  for (const ProjectedPart& part : in.parts) {
    check(part.head_dim == 0 || part.channels % part.head_dim == 0, kProjections, "head_dim is ", part.head_dim,
          "; must divide the part's ", part.channels, " channels");
    check(!part.taps.defined() || (part.taps.dim() == 2 && part.taps.size(0) == part.channels && part.taps.size(1) > 0),
          kProjections, "taps must be [", part.channels, ", width]");
    check((part.shift == Shift::mean) == part.share.defined(), kProjections,
          "share must be given with the shift to a mean, and only then");
    check(!part.angles.defined() || part.angles.sizes() == at::IntArrayRef({in.x.size(1), part.head_dim}), kProjections,
          "angles must be [", in.x.size(1), ", ", part.head_dim, "]");
    channels += part.channels;
  }
  check(rows == channels, kProjections, "the weights have ", rows, " rows; must be the parts' ", channels, " channels");
}

void check_carried(const ProjectionsInputs& in, const std::vector<CarriedRows>& carried) {
  check(carried.size() == in.parts.size(), kProjections, "carried has ", carried.size(), "; must be one per part, ",
        in.parts.size());
  check(!in.cu_seqlens || !in.cu_seqlens->defined(), kProjections,
        "carried rows are given with cu_seqlens; must be one or the other");
  for (size_t i = 0; i < carried.size(); ++i) {
    const ProjectedPart& part = in.parts[i];
    const auto check_carried_rows = [&](const char* name, const Tensor& x, bool has_use, int64_t rows) {
      if (!x.defined()) return;
      check(has_use && x.sizes() == at::IntArrayRef({in.x.size(0), rows, part.channels}), kProjections, name,
            " has shape ", x.sizes(), "; must be [", in.x.size(0), ", ", rows, ", ", part.channels, "]");
    };
    const bool convolves = part.taps.defined();
    check_carried_rows("carried inputs", carried[i].inputs, convolves, convolves ? part.taps.size(1) - 1 : 0);
    check_carried_rows("a carried row", carried[i].row, part.shift != Shift::none, 1);
  }
}

// `carried` may be null.
variable_list run_projections(const ProjectionsInputs& in, const std::vector<CarriedRows>* carried,
                              ProjectionsPlan plan) {
  variable_list tensors = {float_rows(kProjections, "x", in.x)};
  const auto place = [&](const Tensor& tensor) -> int64_t {
    if (!tensor.defined()) return -1;
    tensors.push_back(tensor);
    return static_cast<int64_t>(tensors.size()) - 1;
  };
  const auto place_rows = [&](const char* name, const Tensor& tensor) {
    return place(float_rows(kProjections, name, tensor));
  };
  variable_list leaves = {in.x};
  leaves.insert(leaves.end(), in.weights.begin(), in.weights.end());
  leaves.insert(leaves.end(), in.biases.begin(), in.biases.end());
  for (size_t i = 0; i < in.parts.size(); ++i) {
    const ProjectedPart& part = in.parts[i];
    leaves.insert(leaves.end(), {part.taps, part.taps_bias, part.share, part.angles});
    if (carried != nullptr) leaves.insert(leaves.end(), {(*carried)[i].inputs, (*carried)[i].row});
  }
  const bool recorded = needs_gradient(leaves);
  for (size_t i = 0; i < in.weights.size(); ++i) {
    const Tensor& weight = in.weights[i];
    plan.weights.push_back(
        place(recorded ? trained_weight(kProjections, weight) : stored_weight(kProjections, weight)));
    plan.biases.push_back(in.biases.empty() ? -1 : place_rows("a bias", in.biases[i]));
    plan.wants_weights |= weight.requires_grad() || (plan.biases[i] >= 0 && in.biases[i].requires_grad());
  }
  for (size_t i = 0; i < in.parts.size(); ++i) {
    const ProjectedPart& part = in.parts[i];
    PartPlan& made = plan.parts[i];
    made.taps = place_rows("taps", part.taps);
    made.taps_bias = place_rows("taps_bias", part.taps_bias);
    made.share = place_rows("share", part.share);
    made.angles = place_rows("angles", part.angles);
    if (carried == nullptr) continue;
    made.inputs_before = place_rows("carried inputs", (*carried)[i].inputs);
    made.row_before = place_rows("a carried row", (*carried)[i].row);
  }
  if (!recorded) return inferred_projections(plan, tensors);
  return ProjectionsFunction::apply(at::TensorList(tensors), std::make_shared<const ProjectionsPlan>(std::move(plan)));
}

ProjectionsPlan plan_of(const ProjectionsInputs& in) {
  check_inputs(in);
  check_inference(kProjections, in.x, in.weights);
  ProjectionsPlan plan;
  plan.cu_seqlens = offsets_of(kProjections, in.cu_seqlens);
  kernels::check_sequences(kProjections, in.x.size(0), in.x.size(1), plan.cu_seqlens);
  for (const ProjectedPart& part : in.parts) {
    plan.parts.push_back({.first = plan.channels,
                          .channels = part.channels,
                          .head_dim = part.head_dim > 0 ? part.head_dim : part.channels,
                          .width = part.taps.defined() ? part.taps.size(1) : 1,
                          .silu = part.silu,
                          .unit_eps = part.unit_eps,
                          .shift = part.shift});
    plan.channels += part.channels;
  }
  plan.results = std::ssize(plan.parts);
  return plan;
}

std::vector<Tensor> in_dtype(const Tensor& x, at::TensorList outputs) {
  std::vector<Tensor> converted;
  for (const Tensor& y : outputs) converted.push_back(y.to(x.scalar_type()));
  return converted;
}

}  // namespace

std::vector<Tensor> projections(const ProjectionsInputs& in) {
  return in_dtype(in.x, run_projections(in, nullptr, plan_of(in)));
}

std::vector<Tensor> projections(const ProjectionsInputs& in, std::vector<CarriedRows>& carried) {
  ProjectionsPlan plan = plan_of(in);
  check_carried(in, carried);
  for (size_t i = 0; i < in.parts.size(); ++i) {
    if (in.parts[i].taps.defined()) plan.parts[i].inputs_after = plan.results++;
    const bool has_row = in.x.size(1) > 0 || carried[i].row.defined();
    if (in.parts[i].shift != Shift::none && has_row) plan.parts[i].row_after = plan.results++;
  }
  const std::vector<PartPlan> parts = plan.parts;
  const variable_list results = run_projections(in, &carried, std::move(plan));
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto result = [&](int64_t place) { return place < 0 ? Tensor() : results[place]; };
    carried[i] = {.inputs = result(parts[i].inputs_after), .row = result(parts[i].row_after)};
  }
  return in_dtype(in.x, at::TensorList(results).slice(0, parts.size()));
}

}  // namespace ovq::ops
