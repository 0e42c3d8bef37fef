#include "ovq/ops/recurrence/torch_chunks.h"

#include <ATen/core/grad_mode.h>

#include <limits>

#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;

// body(m, first, count) for runs of the [M, N] matrices of a product.
template <class Body>
void for_matrix_runs(const Tensor& out, int64_t inner, Body&& body) {
  const int64_t outer = out.size(0), runs = out.size(1);
  const bool threads = out.is_cpu() && out.numel() * inner > 1 << 17;
  const int64_t wanted = threads ? 4 * at::get_num_threads() : 1;
  const int64_t run = std::max<int64_t>(1, std::min(runs, outer * runs / std::max<int64_t>(1, wanted)));
  const int64_t pieces = (runs + run - 1) / run;
  kernels::parallel_for(outer * pieces, threads ? at::get_num_threads() : 1, [&](int64_t index, int) {
    const at::NoGradGuard no_grad;
    const int64_t first = index % pieces * run;
    body(index / pieces, first, std::min(run, runs - first));
  });
}

Tensor run_of(const Tensor& x, int64_t m, int64_t first, int64_t count) {
  return x.select(0, m).narrow(0, first, count);
}

template <class T>
void fill_differences(const Tensor& sums, const Tensor& pairs) {
  const int64_t chunk = pairs.size(-1);
  const double* const from = sums.data_ptr<double>();
  T* const to = pairs.data_ptr<T>();
  parallel_blocks(sums.numel(), 64, chunk, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* const chunk_sums = from + row / chunk * chunk;
      const int64_t seen = row % chunk + 1;
      for (int64_t j = 0; j < seen; ++j) to[row * chunk + j] = static_cast<T>(from[row] - chunk_sums[j]);
      std::fill(to + row * chunk + seen, to + (row + 1) * chunk, -std::numeric_limits<T>::infinity());
    }
  });
}

// a, b [M, R, size] with contiguous rows
template <class T>
void fill_dots(const Tensor& a, const Tensor& b, const Tensor& out) {
  const int64_t rows = a.size(1), size = a.size(2);
  const T *const left = a.data_ptr<T>(), *const right = b.data_ptr<T>();
  T* const to = out.data_ptr<T>();
  parallel_blocks(out.numel(), 16, size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m = i / rows, row = i % rows;
      to[i] = dot(left + m * a.stride(0) + row * a.stride(1), right + m * b.stride(0) + row * b.stride(1), size);
    }
  });
}

}  // namespace

Tensor to_chunks(const Tensor& x, int64_t chunk) {
  const int64_t batch = x.size(0), time = x.size(1), heads = x.size(2);
  const int64_t chunks = (time + chunk - 1) / chunk, padding = chunks * chunk - time;
  std::vector<int64_t> shape{batch, heads, chunks * chunk}, chunked{batch * heads, chunks, chunk};
  if (x.dim() == 4) {
    shape.push_back(x.size(3));
    chunked.push_back(x.size(3));
  }
  const Tensor out = at::empty(shape, x.options());
  out.narrow(2, 0, time).copy_(x.transpose(1, 2));
  if (padding > 0) out.narrow(2, time, padding).zero_();
  return out.view(chunked);
}

Tensor from_chunks(const Tensor& x, int64_t batch, int64_t time) {
  std::vector<int64_t> shape{batch, x.size(0) / batch, x.size(1) * x.size(2)};
  if (x.dim() == 4) shape.push_back(x.size(3));
  return x.reshape(shape).narrow(2, 0, time).transpose(1, 2);
}

Tensor product(const Tensor& a, const Tensor& b) {
  const Tensor out = at::empty({a.size(0), a.size(1), a.size(2), b.size(3)}, a.options());
  for_matrix_runs(out, a.size(3), [&](int64_t m, int64_t first, int64_t count) {
    Tensor to = run_of(out, m, first, count);
    at::bmm_out(to, run_of(a, m, first, count), run_of(b, m, first, count));
  });
  return out;
}

void add_product(const Tensor& to, const Tensor& a, const Tensor& b) {
  for_matrix_runs(to, a.size(3), [&](int64_t m, int64_t first, int64_t count) {
    run_of(to, m, first, count).baddbmm_(run_of(a, m, first, count), run_of(b, m, first, count));
  });
}

Tensor row_dots(const Tensor& a, const Tensor& b) {
  if (!has_loops(a) || a.numel() == 0) return (a * b).sum(-1);
  const Tensor out = at::empty(a.sizes().slice(0, a.dim() - 1), a.options());
  const auto rows = [](const Tensor& x) { return x.dim() == 3 ? x : x.flatten(1, -2); };
  const Tensor left = with_contiguous_rows(rows(a)), right = with_contiguous_rows(rows(b));
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "row_dots", [&] { fill_dots<scalar_t>(left, right, out); });
  return out;
}

Decay make_decay(const Tensor& g) {
  const Tensor sums = g.cumsum(-1, at::kDouble), last = sums.narrow(-1, sums.size(-1) - 1, 1);
  const auto exponential = [&](const Tensor& x) { return x.exp().to(g.scalar_type()).unsqueeze(-1); };
  Decay decay{.from_start = exponential(sums), .to_end = exponential(last - sums), .total = exponential(last)};
  if (has_loops(g)) {
    decay.pairs = at::empty({g.size(0), g.size(1), g.size(2), g.size(2)}, g.options());
    AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), "make_decay", [&] { fill_differences<scalar_t>(sums, decay.pairs); });
  } else {
    const Tensor above = at::ones({g.size(2), g.size(2)}, g.options().dtype(at::kBool)).triu(1);
    decay.pairs = (sums.unsqueeze(-1) - sums.unsqueeze(-2))
                      .to(g.scalar_type())
                      .masked_fill(above, -std::numeric_limits<double>::infinity());
  }
  decay.pairs.exp_();
  return decay;
}

Tensor sum_to_end(const Tensor& d_sums) { return d_sums.flip(-1).cumsum(-1).flip(-1); }

Tensor border_states(const Tensor& added, const Tensor& total, const Tensor& start) {
  std::vector<int64_t> shape = added.sizes().vec();
  const int64_t chunks = shape[1]++;
  const Tensor states = at::empty(shape, added.options());
  states.select(1, 0).copy_(start);
  for (int64_t n = 0; n < chunks; ++n) {
    Tensor next = states.select(1, n + 1);
    at::addcmul_out(next, added.select(1, n), total.select(1, n), states.select(1, n));
  }
  return states;
}

Tensor border_gradients(const Tensor& added, const Tensor& total, const Tensor& end) {
  std::vector<int64_t> shape = added.sizes().vec();
  const int64_t chunks = shape[1]++;
  const Tensor gradients = at::empty(shape, added.options());
  gradients.select(1, chunks).copy_(end);
  for (int64_t n = chunks - 1; n >= 0; --n) {
    Tensor before = gradients.select(1, n);
    at::addcmul_out(before, added.select(1, n), total.select(1, n), gradients.select(1, n + 1));
  }
  return gradients;
}

}  // namespace ovq::ops
