#include "ovq/ops/projections/projections.h"

#include <algorithm>
#include <vector>

#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/rows/kernel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kProjections = "projections";
constexpr int64_t kColumns = 128;  // channels a thread takes through a sequence, at least one head

// Channels [first, first + count) of a part, in one sequence.
struct Piece {
  size_t part;
  int64_t first, count;
  size_t sequence;
};

int64_t head_dim_of(const ProjectionPart& part) { return part.head_dim > 0 ? part.head_dim : part.channels; }

void check_optional(const char* name, std::span<const float> x, int64_t size) {
  if (!x.empty()) check_size(kProjections, name, x, size);
}

class ProjectionPlan {
 public:
  explicit ProjectionPlan(const ProjectionRows& in)
      : in_(in), sequences_(check_sequences(kProjections, in.batch, in.time, in.cu_seqlens)) {
    for (const ProjectionPart& part : in.parts) {
      check_part(part);
      first_.push_back(channels_);
      channels_ += part.channels;
      taps_.emplace_back(part.taps.size());
      const int64_t width = part.width();
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t c = 0; c < part.channels; ++c) taps_.back()[j * part.channels + c] = part.taps[c * width + j];
      }
    }
    check_size(kProjections, "y", in.y, in.batch * in.time * channels_);
    list_pieces();
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t channels() const { return channels_; }
  int64_t first(size_t part) const { return first_[part]; }  // of its channels in y

  // The row of the piece's first token among all.
  int64_t row_of(const Piece& piece) const {
    const Sequence& sequence = sequences_[piece.sequence];
    return sequence.batch * in_.time + sequence.first;
  }
  // The element of [B, rows, channels of the part] that the piece begins with.
  int64_t carried(const Piece& piece, int64_t rows) const {
    return sequences_[piece.sequence].batch * rows * in_.parts[piece.part].channels + piece.first;
  }

  detail::HeadRows rows_of(const Piece& piece) const {
    const ProjectionPart& part = in_.parts[piece.part];
    const Sequence& sequence = sequences_[piece.sequence];
    const int64_t width = part.width();
    return {.y = in_.y.data() + row_of(piece) * channels_ + first_[piece.part] + piece.first,
            .y_stride = channels_,
            .time = sequence.length,
            .channels = piece.count,
            .taps = width == 0 ? nullptr : taps_[piece.part].data() + piece.first,
            .taps_stride = part.channels,
            .taps_count = width,
            .taps_bias = part.taps_bias.empty() ? nullptr : part.taps_bias.data() + piece.first,
            .before = part.inputs_before.empty() ? nullptr : part.inputs_before.data() + carried(piece, width - 1),
            .before_stride = part.channels,
            .row_before = part.row_before.empty() ? nullptr : part.row_before.data() + carried(piece, 1),
            .silu = part.silu,
            .unit = part.unit_eps.has_value(),
            .eps = part.unit_eps.value_or(0.0f),
            .head_dim = head_dim_of(part),
            .angles = part.angles.empty() ? nullptr : part.angles.data() + sequence.first * head_dim_of(part),
            .shift = part.shift,
            .share = part.share};
  }

  // body(index, piece); little work stays on one thread.
  template <class Body>
  void for_pieces(Body&& body) const {
    constexpr int64_t kWorthThreads = 1 << 15;
    const int threads = std::ssize(in_.y) < kWorthThreads ? 1 : max_threads();
    parallel_for(std::ssize(pieces_), threads,
                 [&](int64_t i, int) { body(static_cast<size_t>(i), pieces_[static_cast<size_t>(i)]); });
  }

 private:
  void check_part(const ProjectionPart& part) const {
    check(part.channels >= 1, kProjections, "a part has ", part.channels, " channels; must have at least 1");
    check(part.head_dim == 0 || (part.head_dim > 0 && part.channels % part.head_dim == 0), kProjections, "head_dim is ",
          part.head_dim, "; must divide the part's ", part.channels, " channels");
    check(std::ssize(part.taps) % part.channels == 0, kProjections, "taps has ", part.taps.size(),
          " elements; must be [", part.channels, ", width]");
    check_optional("taps_bias", part.taps_bias, part.channels);
    check_optional("angles", part.angles, in_.time * head_dim_of(part));
    check(part.angles.empty() || head_dim_of(part) % 2 == 0, kProjections, "head_dim is ", head_dim_of(part),
          "; must be even with angles");
    check_optional("inputs_before", part.inputs_before, in_.batch * (part.width() - 1) * part.channels);
    check_optional("row_before", part.row_before, in_.batch * part.channels);
    check((part.inputs_before.empty() && part.row_before.empty()) || in_.cu_seqlens.empty(), kProjections,
          "rows before the first token are given with cu_seqlens; must be one or the other");
    check(part.row_before.empty() || part.shift != Shift::none, kProjections,
          "row_before is given; must be with a shift");
  }

  void list_pieces() {
    for (size_t sequence = 0; sequence < sequences_.size(); ++sequence) {
      if (sequences_[sequence].length == 0) continue;
      for (size_t i = 0; i < in_.parts.size(); ++i) {
        const ProjectionPart& part = in_.parts[i];
        // Heads stay whole where their size matters.
        const bool heads = part.unit_eps || !part.angles.empty();
        const int64_t unit = heads ? head_dim_of(part) : std::min(kColumns, part.channels);
        const int64_t step = std::max<int64_t>(1, kColumns / unit) * unit;
        for (int64_t first = 0; first < part.channels; first += step) {
          pieces_.push_back({i, first, std::min(step, part.channels - first), sequence});
        }
      }
    }
  }

  const ProjectionRows& in_;
  std::vector<Sequence> sequences_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<float>> taps_;  // of each part [width, channels]
  std::vector<int64_t> first_;
  int64_t channels_ = 0;
};

// body(b, time, row) for each row of [B, width - 1, channels] behind the last token; its input is at `time`, which is
// negative where it lies before the first token.
template <class Body>
void for_inputs_after(const ProjectionRows& in, int64_t width, Body&& body) {
  for (int64_t b = 0; b < in.batch; ++b) {
    for (int64_t row = 0; row + 1 < width; ++row) body(b, in.time - width + 1 + row, b * (width - 1) + row);
  }
}

void carry_inputs(const ProjectionRows& in, const ProjectionPlan& plan, size_t index, std::span<float> after) {
  const ProjectionPart& part = in.parts[index];
  const int64_t width = part.width(), channels = part.channels;
  for_inputs_after(in, width, [&](int64_t b, int64_t time, int64_t row) {
    float* const to = after.data() + row * channels;
    if (time >= 0) {
      std::copy_n(in.y.data() + (b * in.time + time) * plan.channels() + plan.first(index), channels, to);
    } else if (part.inputs_before.empty()) {
      std::fill_n(to, channels, 0.0f);
    } else {
      std::copy_n(part.inputs_before.data() + ((b + 1) * (width - 1) + time) * channels, channels, to);
    }
  });
}

// Adds the gradients of what carry_inputs copies to those of where it comes from.
void carry_inputs_backward(const ProjectionRows& in, const ProjectionPlan& plan, size_t index,
                           const ProjectionGradients& gradients, std::span<float> d_y) {
  const ProjectionPart& part = in.parts[index];
  const int64_t width = part.width(), channels = part.channels;
  for_inputs_after(in, width, [&](int64_t b, int64_t time, int64_t row) {
    float* to = nullptr;
    if (time >= 0) {
      to = d_y.data() + (b * in.time + time) * plan.channels() + plan.first(index);
    } else if (!gradients.d_inputs_before.empty()) {
      to = gradients.d_inputs_before.data() + ((b + 1) * (width - 1) + time) * channels;
    } else {
      return;
    }
    const float* const from = gradients.d_inputs_after.data() + row * channels;
    for (int64_t c = 0; c < channels; ++c) to[c] += from[c];
  });
}

void check_outputs(const ProjectionRows& in, std::span<const ProjectionOutputs> outputs) {
  check(outputs.size() == in.parts.size(), kProjections, "outputs has ", outputs.size(), "; must be one per part, ",
        in.parts.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ProjectionPart& part = in.parts[i];
    check_size(kProjections, "o", outputs[i].o, in.batch * in.time * part.channels);
    check_optional("inputs_after", outputs[i].inputs_after, in.batch * (part.width() - 1) * part.channels);
    check_optional("row_after", outputs[i].row_after, in.batch * part.channels);
    check(outputs[i].row_after.empty() || part.shift != Shift::none, kProjections,
          "row_after is given; must be with a shift");
    check(outputs[i].row_after.empty() || in.time > 0 || !part.row_before.empty(), kProjections,
          "row_after is given without tokens; must be with row_before");
  }
}

void check_gradients(const ProjectionRows& in, const ProjectionPlan& plan, std::span<ProjectionGradients> gradients,
                     std::span<float> d_y) {
  check(gradients.size() == in.parts.size(), kProjections, "gradients has ", gradients.size(),
        "; must be one per part, ", in.parts.size());
  check_size(kProjections, "d_y", d_y, std::ssize(in.y));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const ProjectionPart& part = in.parts[i];
    const ProjectionGradients& g = gradients[i];
    check_size(kProjections, "d_o", g.d_o, in.batch * in.time * part.channels);
    check_size(kProjections, "d_taps", g.d_taps, plan.sequences() * part.width() * part.channels);
    check_optional("d_taps_bias", g.d_taps_bias, plan.sequences() * part.channels);
    for (const auto& [name, x] :
         {std::pair{"d_inputs_after", g.d_inputs_after}, {"d_inputs_before", g.d_inputs_before}}) {
      check_optional(name, x, in.batch * (part.width() - 1) * part.channels);
    }
    for (const auto& [name, x] : {std::pair{"d_row_after", g.d_row_after}, {"d_row_before", g.d_row_before}}) {
      check_optional(name, x, in.batch * part.channels);
    }
    check(g.d_inputs_before.empty() || !part.inputs_before.empty(), kProjections,
          "d_inputs_before is given; must be with inputs_before");
    check(g.d_row_before.empty() || !part.row_before.empty(), kProjections,
          "d_row_before is given; must be with row_before");
  }
}

}  // namespace

void projection_rows(const ProjectionRows& in, std::span<const ProjectionOutputs> outputs) {
  const ProjectionPlan plan(in);
  check_outputs(in, outputs);
  const auto& kernels = detail::row_kernels();
  plan.for_pieces([&](size_t, const Piece& piece) {
    const detail::HeadRows rows = plan.rows_of(piece);
    const ProjectionOutputs& to = outputs[piece.part];
    const int64_t channels = in.parts[piece.part].channels;
    thread_local std::vector<float> scratch;  // kept: there are many pieces, and many calls
    scratch.resize(static_cast<size_t>(detail::head_rows_scratch(rows)));
    kernels.heads(rows, scratch.data(), to.o.data() + plan.row_of(piece) * channels + piece.first, channels,
                  to.row_after.empty() ? nullptr : to.row_after.data() + plan.carried(piece, 1));
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].inputs_after.empty()) carry_inputs(in, plan, i, outputs[i].inputs_after);
    if (in.time == 0 && !outputs[i].row_after.empty()) {
      std::copy(in.parts[i].row_before.begin(), in.parts[i].row_before.end(), outputs[i].row_after.begin());
    }
  }
}

void projection_rows_backward(const ProjectionRows& in, std::span<ProjectionGradients> gradients,
                              std::span<float> d_y) {
  const ProjectionPlan plan(in);
  check_gradients(in, plan, gradients, d_y);
  for (ProjectionGradients& part : gradients) {  // sequences without tokens have no piece
    for (const std::span<float> sum : {part.d_taps, part.d_taps_bias, part.d_inputs_before, part.d_row_before}) {
      std::fill(sum.begin(), sum.end(), 0.0f);
    }
  }
  std::vector<double> d_shares(plan.pieces().size());
  const auto& kernels = detail::row_kernels();
  plan.for_pieces([&](size_t index, const Piece& piece) {
    const detail::HeadRows rows = plan.rows_of(piece);
    const ProjectionGradients& g = gradients[piece.part];
    const int64_t channels = in.parts[piece.part].channels, width = rows.taps_count;
    const auto sequence = static_cast<int64_t>(piece.sequence);
    const auto at = [](auto span, int64_t place) { return span.empty() ? nullptr : span.data() + place; };
    std::vector<float> scratch(static_cast<size_t>(detail::head_rows_scratch(rows)));
    detail::HeadRowsBackward out{
        .d_out = g.d_o.data() + plan.row_of(piece) * channels + piece.first,
        .out_stride = channels,
        .d_y = d_y.data() + plan.row_of(piece) * plan.channels() + plan.first(piece.part) + piece.first,
        .d_taps = at(g.d_taps, sequence * width * channels + piece.first),
        .d_taps_stride = channels,
        .d_taps_bias = at(g.d_taps_bias, sequence * channels + piece.first),
        .d_last = at(g.d_row_after, plan.carried(piece, 1)),
        .d_before = at(g.d_inputs_before, plan.carried(piece, width - 1)),
        .d_before_stride = channels,
        .d_row_before = at(g.d_row_before, plan.carried(piece, 1))};
    kernels.heads_backward(rows, scratch.data(), out);
    d_shares[index] = out.d_share;
  });
  for (size_t i = 0; i < gradients.size(); ++i) {
    ProjectionGradients& part = gradients[i];
    part.d_share = 0;
    for (size_t j = 0; j < d_shares.size(); ++j) part.d_share += plan.pieces()[j].part == i ? d_shares[j] : 0.0;
    if (!part.d_inputs_after.empty()) carry_inputs_backward(in, plan, i, part, d_y);
    if (in.time == 0 && !part.d_row_after.empty() && !part.d_row_before.empty()) {
      std::copy(part.d_row_after.begin(), part.d_row_after.end(), part.d_row_before.begin());
    }
  }
}

}  // namespace ovq::kernels
