#include "ovq/ops/projections/torch.h"

#include <numeric>

#include "ovq/base/error.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/products/torch.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/rotary/torch.h"
#include "ovq/ops/rows/torch.h"
#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/pointwise.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using kernels::Shift;
using kernels::detail::HeadRows;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kProjections = "projections";
constexpr int64_t kColumns = 128;  // channels a thread takes through a sequence, at least one head

// A part's place in the list of tensors that autograd sees: -1 where it has none.
struct PartPlan {
  int64_t first = 0, channels = 0, head_dim = 0;
  int64_t taps = -1, taps_bias = -1, share = -1, angles = -1;
  bool silu = false;
  c10::optional<double> unit_eps;
  Shift shift = Shift::none;
};

struct ProjectionsPlan {
  std::vector<int64_t> weights, biases;  // places, -1 where there is none
  std::vector<PartPlan> parts;
  std::vector<kernels::Sequence> sequences;
  int64_t channels = 0;
  bool wants_weights = false;
};
using PlanPtr = std::shared_ptr<const ProjectionsPlan>;

// Channels [first, first + count) of a part, in one sequence.
struct Piece {
  size_t part;
  int64_t first, count;
  size_t sequence;
};

std::vector<Piece> pieces_of(const ProjectionsPlan& plan) {
  std::vector<Piece> pieces;
  for (size_t sequence = 0; sequence < plan.sequences.size(); ++sequence) {
    if (plan.sequences[sequence].length == 0) continue;
    for (size_t part = 0; part < plan.parts.size(); ++part) {
      const PartPlan& p = plan.parts[part];
      // Heads stay whole where their size matters.
      const bool heads = p.unit_eps || p.angles >= 0;
      const int64_t unit = heads ? p.head_dim : std::min(kColumns, p.channels);
      const int64_t step = std::max<int64_t>(1, kColumns / unit) * unit;
      for (int64_t first = 0; first < p.channels; first += step) {
        pieces.push_back({part, first, std::min(step, p.channels - first), sequence});
      }
    }
  }
  return pieces;
}

// The convolution's weights as rows of taps, for each part; undefined where there is none.
std::vector<Tensor> taps_of(const ProjectionsPlan& plan, at::TensorList tensors) {
  std::vector<Tensor> taps;
  for (const PartPlan& part : plan.parts) {
    taps.push_back(part.taps < 0 ? Tensor() : tensors[part.taps].t().contiguous());
  }
  return taps;
}

class PieceRows {
 public:
  PieceRows(const ProjectionsPlan& plan, at::TensorList tensors, const Tensor& y, int64_t time)
      : plan_(plan), taps_(taps_of(plan, tensors)), y_(y), time_(time) {
    for (const PartPlan& part : plan.parts) {
      const auto values = [&](int64_t place) { return place < 0 ? Tensor() : tensors[place].contiguous(); };
      biases_.push_back(values(part.taps_bias));
      angles_.push_back(values(part.angles));
      shares_.push_back(part.share < 0 ? 0.0f : tensors[part.share].item<float>());
    }
  }

  HeadRows operator()(const Piece& piece) const {
    const PartPlan& part = plan_.parts[piece.part];
    const Tensor &taps = taps_[piece.part], &bias = biases_[piece.part], &angles = angles_[piece.part];
    const kernels::Sequence& sequence = plan_.sequences[piece.sequence];
    return {.y = y_.data_ptr<float>() + row_of(piece) * plan_.channels + part.first + piece.first,
            .y_stride = plan_.channels,
            .time = sequence.length,
            .channels = piece.count,
            .taps = taps.defined() ? taps.data_ptr<float>() + piece.first : nullptr,
            .taps_stride = part.channels,
            .taps_count = taps.defined() ? taps.size(0) : 0,
            .taps_bias = bias.defined() ? bias.data_ptr<float>() + piece.first : nullptr,
            .silu = part.silu,
            .unit = part.unit_eps.has_value(),
            .eps = static_cast<float>(part.unit_eps.value_or(0)),
            .head_dim = part.head_dim,
            .angles = angles.defined() ? angles.data_ptr<float>() + sequence.first * part.head_dim : nullptr,
            .shift = part.shift,
            .share = shares_[piece.part]};
  }

  int64_t row_of(const Piece& piece) const {
    const kernels::Sequence& sequence = plan_.sequences[piece.sequence];
    return sequence.batch * time_ + sequence.first;
  }

 private:
  const ProjectionsPlan& plan_;
  std::vector<Tensor> taps_, biases_, angles_;
  std::vector<float> shares_;
  const Tensor& y_;
  int64_t time_;
};

// `elements`: of all pieces; little work stays on one thread.
template <class Body>
void for_pieces(const std::vector<Piece>& pieces, int64_t elements, Body&& body) {
  const int threads = elements < 1 << 15 ? 1 : at::get_num_threads();
  kernels::parallel_for(static_cast<int64_t>(pieces.size()), threads, [&](int64_t index, int) {
    body(static_cast<size_t>(index), pieces[static_cast<size_t>(index)]);
  });
}

// y [rows, channels], what x became -> the parts [B, T, channels]
variable_list parts_of(const ProjectionsPlan& plan, at::TensorList tensors, const Tensor& y, int64_t batch,
                       int64_t time) {
  RECORD_USER_SCOPE("ovq::projections_forward");
  variable_list outputs;
  for (const PartPlan& part : plan.parts) outputs.push_back(at::empty({batch, time, part.channels}, y.options()));
  const PieceRows rows_of(plan, tensors, y, time);
  const auto& kernels = kernels::detail::row_kernels();
  for_pieces(pieces_of(plan), y.numel(), [&](size_t, const Piece& piece) {
    const HeadRows in = rows_of(piece);
    const Tensor& out = outputs[piece.part];
    thread_local std::vector<float> scratch;  // kept: there are many pieces, and many calls
    scratch.resize(static_cast<size_t>(kernels::detail::head_rows_scratch(in)));
    kernels.heads(in, scratch.data(), out.data_ptr<float>() + rows_of.row_of(piece) * out.size(2) + piece.first,
                  out.size(2));
  });
  return outputs;
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
  const Tensor x = tensors[0].contiguous(), rows = x.view({-1, x.size(2)});
  const Tensor bias = for_each_row(stacked_biases(plan, tensors), rows.size(0));
  return parts_of(plan, tensors, rows_times_stored(rows, at_places(tensors, plan.weights), bias), x.size(0), x.size(1));
}

class ProjectionsFunction : public OnceDifferentiable<ProjectionsFunction> {
 public:
  static constexpr const char* kOp = kProjections;

  // tensors[0] is x.
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const PlanPtr& plan) {
    const Tensor x = tensors[0].contiguous();
    const int64_t batch = x.size(0), time = x.size(1);
    const Tensor rows = x.view({-1, x.size(2)}), matrix = stacked(tensors, plan->weights);
    const Tensor y = rows_times_transposed(rows, matrix, for_each_row(stacked_biases(*plan, tensors), rows.size(0)));
    variable_list outputs = parts_of(*plan, tensors, y, batch, time);
    variable_list saved = {rows, matrix, y};
    saved.insert(saved.end(), tensors.begin() + 1, tensors.end());
    context->save_for_backward(saved);
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(plan));
    return outputs;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["plan"].toCapsule();
    const ProjectionsPlan& plan = *static_cast<const Holder&>(*capsule).plan;
    variable_list tensors = context->get_saved_variables();
    const Tensor rows = tensors[0], matrix = tensors[1], y = tensors[2];
    tensors.erase(tensors.begin(), tensors.begin() + 2);  // places count from x, which only shapes the result
    variable_list results(tensors.size() + 1);
    const int64_t batch = gradients[0].size(0), time = gradients[0].size(1);
    const Tensor d_y = at::empty(y.sizes(), y.options());
    {
      RECORD_USER_SCOPE("ovq::projections_backward");
      heads_backward(plan, tensors, y, gradients, d_y, results);
    }
    results[0] = rows_times(d_y, matrix).view({batch, time, rows.size(1)});
    if (plan.wants_weights) {
      const Tensor d_matrix = columns_times_rows(d_y, rows);
      int64_t first = 0;
      for (size_t i = 0; i < plan.weights.size(); ++i) {
        const int64_t channels = tensors[plan.weights[i]].size(0);
        results[plan.weights[i]] = d_matrix.narrow(0, first, channels);
        if (plan.biases[i] >= 0) results[plan.biases[i]] = d_y.narrow(1, first, channels).sum(0);
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

  // d_y, and in `results` the gradients of convolutions and shares. A row per sequence is summed at the end.
  static void heads_backward(const ProjectionsPlan& plan, const variable_list& tensors, const Tensor& y,
                             const variable_list& gradients, const Tensor& d_y, variable_list& results) {
    const int64_t time = gradients[0].size(1), sequences = static_cast<int64_t>(plan.sequences.size());
    variable_list d_outputs, d_taps, d_biases;
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const PartPlan& part = plan.parts[i];
      d_outputs.push_back(gradients[i].contiguous());
      const int64_t width = part.taps < 0 ? 0 : tensors[part.taps].size(1);
      d_taps.push_back(part.taps < 0 ? Tensor() : at::zeros({sequences, width, part.channels}, y.options()));
      d_biases.push_back(part.taps_bias < 0 ? Tensor() : at::zeros({sequences, part.channels}, y.options()));
    }
    const std::vector<Piece> pieces = pieces_of(plan);
    std::vector<double> d_shares(pieces.size(), 0.0);
    const PieceRows rows_of(plan, tensors, y, time);
    const auto& kernels = kernels::detail::row_kernels();
    for_pieces(pieces, y.numel(), [&](size_t index, const Piece& piece) {
      const HeadRows in = rows_of(piece);
      const PartPlan& part = plan.parts[piece.part];
      const Tensor &d_out = d_outputs[piece.part], &taps = d_taps[piece.part], &bias = d_biases[piece.part];
      const int64_t row = rows_of.row_of(piece), sequence = static_cast<int64_t>(piece.sequence);
      std::vector<float> scratch(kernels::detail::head_rows_scratch(in));
      kernels::detail::HeadRowsBackward out{
          .d_out = d_out.data_ptr<float>() + row * part.channels + piece.first,
          .out_stride = part.channels,
          .d_y = d_y.data_ptr<float>() + row * plan.channels + part.first + piece.first,
          .d_taps = taps.defined() ? taps.data_ptr<float>() + sequence * taps.stride(0) + piece.first : nullptr,
          .d_taps_stride = part.channels,
          .d_taps_bias = bias.defined() ? bias.data_ptr<float>() + sequence * part.channels + piece.first : nullptr};
      kernels.heads_backward(in, scratch.data(), out);
      d_shares[index] = out.d_share;
    });
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const PartPlan& part = plan.parts[i];
      if (part.taps >= 0) results[part.taps] = d_taps[i].sum(0).t().contiguous();
      if (part.taps_bias >= 0) results[part.taps_bias] = d_biases[i].sum(0);
      if (part.share < 0) continue;
      double sum = 0;
      for (size_t j = 0; j < pieces.size(); ++j) sum += pieces[j].part == i ? d_shares[j] : 0.0;
      results[part.share] = at::full(tensors[part.share].sizes(), sum, y.options());
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
    check(!part.taps.defined() || (part.taps.dim() == 2 && part.taps.size(0) == part.channels), kProjections,
          "taps must be [", part.channels, ", width]");
    check((part.shift == Shift::mean) == part.share.defined(), kProjections,
          "share must be given with the shift to a mean, and only then");
    check(!part.angles.defined() || part.angles.sizes() == at::IntArrayRef({in.x.size(1), part.head_dim}), kProjections,
          "angles must be [", in.x.size(1), ", ", part.head_dim, "]");
    channels += part.channels;
  }
  check(rows == channels, kProjections, "the weights have ", rows, " rows; must be the parts' ", channels, " channels");
}

bool fused(const ProjectionsInputs& in) {
  if (in.x.numel() == 0 || !has_row_kernels({in.x}) || !has_stored_kernels(in.weights) || !has_row_kernels(in.biases)) {
    return false;
  }
  return std::all_of(in.parts.begin(), in.parts.end(), [](const ProjectedPart& part) {
    return has_row_kernels({part.taps, part.taps_bias, part.share, part.angles});
  });
}

}  // namespace

Tensor shifted_rows(const char* op, const Tensor& x, const c10::optional<Tensor>& cu_seqlens) {
  const int64_t time = x.size(1);
  const Tensor all = at::cat({x.narrow(1, 0, 1), x}, 1);
  const std::vector<int64_t> offsets = offsets_of(op, cu_seqlens);
  if (offsets.empty()) return all.narrow(1, 0, time);
  const Tensor from = at::arange(time, at::kLong);
  for (const auto& sequence : kernels::check_sequences(op, x.size(0), time, offsets)) {
    if (sequence.length > 0) from[sequence.first] += 1;
  }
  return all.index_select(1, from.to(x.device()));
}

std::vector<Tensor> composed_projections(const ProjectionsInputs& in) {
  const auto bias_of = [&](size_t i) { return in.biases.empty() ? Tensor() : in.biases[i]; };
  std::vector<Tensor> products;
  for (size_t i = 0; i < in.weights.size(); ++i) {
    products.push_back(composed_linear(in.x, in.weights[i], bias_of(i)));
  }
  const Tensor all = at::cat(products, -1);
  std::vector<Tensor> outputs;
  int64_t first = 0;
  for (const ProjectedPart& part : in.parts) {
    Tensor y = all.narrow(-1, first, part.channels);
    first += part.channels;
    if (part.taps.defined()) {
      y = short_convolution({.x = y, .weight = part.taps, .bias = part.taps_bias, .cu_seqlens = in.cu_seqlens});
    }
    if (part.silu) y = ops::silu(y);
    y = y.unflatten(-1, {part.head_dim > 0 ? part.channels / part.head_dim : 1, -1});
    if (part.unit_eps) y = l2_norm(y, *part.unit_eps);
    if (part.shift != Shift::none && y.size(1) > 0) {
      const Tensor before = shifted_rows(kProjections, y, in.cu_seqlens);
      y = part.shift == Shift::previous ? before : part.share * before + (1 - part.share) * y;
    }
    if (part.angles.defined()) y = rotate(y, part.angles);
    outputs.push_back(y.flatten(2));
  }
  return outputs;
}

std::vector<Tensor> projections(const ProjectionsInputs& in) {
  check_inputs(in);
  check_inference(kProjections, in.x, in.weights);
  if (!fused(in)) return composed_projections(in);
  const auto plan = std::make_shared<ProjectionsPlan>();
  plan->sequences =
      kernels::check_sequences(kProjections, in.x.size(0), in.x.size(1), offsets_of(kProjections, in.cu_seqlens));
  variable_list tensors = {in.x};
  const auto place = [&](const Tensor& tensor) -> int64_t {
    if (!tensor.defined()) return -1;
    tensors.push_back(tensor);
    return static_cast<int64_t>(tensors.size()) - 1;
  };
  for (size_t i = 0; i < in.weights.size(); ++i) {
    plan->weights.push_back(place(in.weights[i]));
    plan->biases.push_back(in.biases.empty() ? -1 : place(in.biases[i]));
    plan->wants_weights |= in.weights[i].requires_grad() || (plan->biases[i] >= 0 && in.biases[i].requires_grad());
  }
  for (const ProjectedPart& part : in.parts) {
    plan->parts.push_back({.first = plan->channels,
                           .channels = part.channels,
                           .head_dim = part.head_dim > 0 ? part.head_dim : part.channels,
                           .taps = place(part.taps),
                           .taps_bias = place(part.taps_bias),
                           .share = place(part.share),
                           .angles = place(part.angles),
                           .silu = part.silu,
                           .unit_eps = part.unit_eps,
                           .shift = part.shift});
    plan->channels += part.channels;
  }
  if (!needs_gradient(tensors)) return inferred_projections(*plan, tensors);
  return ProjectionsFunction::apply(at::TensorList(tensors), PlanPtr(plan));
}

}  // namespace ovq::ops
