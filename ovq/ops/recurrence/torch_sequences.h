// The recurrences as ops of the library: they take the state before the first token and give the one after the last,
// both new tensors; with packed sequences there is one for each of them.
#pragma once

#include <tuple>
#include <vector>

#include "ovq/ops/recurrence/torch.h"
#include "ovq/ops/torch/arguments.h"
#include "ovq/ops/torch/packed.h"

namespace ovq::ops {

using OptionalTensor = c10::optional<at::Tensor>;
using OutputAndState = std::tuple<at::Tensor, OptionalTensor>;

// In schemas
#define OVQ_SEQUENCES "Tensor? initial_state=None, bool return_state=False, Tensor? cu_seqlens=None"

// The first tokens of sequences, by the dispatched op, for a traced call.
at::Tensor traced_starts(const char* op, const at::Tensor& cu_seqlens, const at::Tensor& like);

// A recurrence over `like`'s batch and time: run(cut, state, starts), where cut(x [B, T, ...]) is what a run sees of x.
// `shape` is that of a state but for its first dimension.
struct Sequences {
  const char* op;
  const at::Tensor& like;  // [B, T, ...]
  const OptionalTensor& initial_state;
  const OptionalTensor& cu_seqlens;
  bool return_state;
  std::vector<int64_t> shape;

  template <class Run>
  OutputAndState run(Run&& run) const {
    using at::Tensor;
    if (is_traced({like, or_undefined(initial_state), or_undefined(cu_seqlens)})) return traced(run);
    const std::vector<int64_t> offsets = offsets_of(op, cu_seqlens);
    const auto sequences = kernels::check_sequences(op, like.size(0), like.size(1), offsets);
    const Tensor before = or_undefined(initial_state);
    std::vector<int64_t> expected{offsets.empty() ? like.size(0) : static_cast<int64_t>(sequences.size())};
    expected.insert(expected.end(), shape.begin(), shape.end());
    check(!before.defined() || before.sizes() == at::IntArrayRef(expected), op, "initial_state has shape ",
          before.defined() ? before.sizes() : at::IntArrayRef(), "; must be ", at::IntArrayRef(expected));
    // Without gradients one token overwrites its state.
    const auto own = [&](const Tensor& state) {
      return state.defined() && !at::GradMode::is_enabled() ? state.clone() : state;
    };
    const bool none = sequences.empty() && !offsets.empty();  // which have no states
    if (offsets.empty() || none || (!before.defined() && !return_state)) {
      const RecurrenceResult result =
          run([](const Tensor& x) { return x; }, none ? Tensor() : own(before), starts_of(op, like, cu_seqlens));
      if (!return_state) return {result.o, c10::nullopt};
      return {result.o, none ? result.state.narrow(0, 0, 0) : result.state};
    }
    std::vector<Tensor> outputs, states;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto cut = [&](const Tensor& x) { return x.narrow(1, sequences[i].first, sequences[i].length); };
      const Tensor state = before.defined() ? before.narrow(0, static_cast<int64_t>(i), 1) : Tensor();
      const RecurrenceResult result = run(cut, own(state), Tensor());
      outputs.push_back(result.o);
      states.push_back(result.state);
    }
    return {at::cat(outputs, 1), return_state ? OptionalTensor(at::cat(states, 0)) : c10::nullopt};
  }

 private:
  // Without a look at data. What the numbers in cu_seqlens decide the shapes of cannot be.
  template <class Run>
  OutputAndState traced(Run&& run) const {
    using at::Tensor;
    const Tensor before = or_undefined(initial_state);
    std::vector<c10::SymInt> expected{like.sym_size(0)};
    expected.insert(expected.end(), shape.begin(), shape.end());
    const bool packed = cu_seqlens && cu_seqlens->defined();
    if (packed && (before.defined() || return_state)) offsets_of(op, cu_seqlens);
    check(!before.defined() || before.sym_sizes() == c10::SymIntArrayRef(expected), op, "initial_state has shape ",
          ShapeText{before}, "; must be ", c10::SymIntArrayRef(expected));
    const Tensor starts = packed ? traced_starts(op, *cu_seqlens, like) : Tensor();
    const RecurrenceResult result = run([](const Tensor& x) { return x; }, before, starts);
    return {result.o, return_state ? OptionalTensor(result.state) : c10::nullopt};
  }
};

}  // namespace ovq::ops
