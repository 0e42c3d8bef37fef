// Time in chunks, as the linear layers compute it: within a chunk everything is products of matrices, and only states
// pass from one chunk to the next. M = batch * heads, N chunks of C tokens; behind the last token stand zeros, which
// leave every state as it is.
#pragma once

#include <ATen/ATen.h>

namespace ovq::ops {

// x [B, T, H, d] or [B, T, H] -> [M, N, C, d] or [M, N, C]
at::Tensor to_chunks(const at::Tensor& x, int64_t chunk);

// The way back: x [M, N, C, d] or [M, N, C] -> [B, T, H, d] or [B, T, H], a view
at::Tensor from_chunks(const at::Tensor& x, int64_t batch, int64_t time);

// a [M, N, m, k] b [M, N, k, n] -> [M, N, m, n]. Threads share the matrices, not the rows of one: libtorch's bmm does
// the latter where it has no MKL, at a third of the speed for the sizes of a chunk.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
void add_product(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b);  // to += a b

// sum over the last dimension of a b
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b);

// Decays e^g inside of the chunks. The sums of g are kept in double: differences of them are what counts, and after one
// strong decay a float would have lost the weak ones.
struct Decay {
  at::Tensor pairs;       // [M, N, C, C]: e^(G_i - G_j), zero above the diagonal
  at::Tensor from_start;  // [M, N, C, 1]: e^G_i
  at::Tensor to_end;      // [M, N, C, 1]: e^(G_C - G_i)
  at::Tensor total;       // [M, N, 1, 1]: e^G_C
};
Decay make_decay(const at::Tensor& g);  // [M, N, C]

// From gradients by the sums G [M, N, C] to those by g.
at::Tensor sum_to_end(const at::Tensor& d_sums);

// States at the chunk borders: S_0 = start, S_n+1 = total_n S_n + added_n.
// added [M, N, ...], start [M, ...] -> [M, N + 1, ...]
at::Tensor border_states(const at::Tensor& added, const at::Tensor& total, const at::Tensor& start);

// Its transpose: dS_N = end, dS_n = total_n dS_n+1 + added_n.
at::Tensor border_gradients(const at::Tensor& added, const at::Tensor& total, const at::Tensor& end);

}  // namespace ovq::ops
