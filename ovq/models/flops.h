// Floating point operations of a mixer's own work, given its queries, keys and values: per token of one layer, averaged
// over a context of T tokens from its start. Products alone count, a multiply-add as two.
//
// As executed here, forward and backward (recomputation included), d the head's dimension:
//   attention   2 T d and 5 T d per query head; with a window w the T/2 keys that a query sees become w - w^2 / 2T
//   ovq         (4 N_c + 2 L) d per query head and 2 N_c d per kv head (search); backward (10 N_c + 5 L) d;
//               N_c the centroids that chunk c reads, L the chunk; with rope a whole chunk more is in the window
//   vq          training reads like attention; a codebook of K costs 2 K d per kv head, two searches with sf-diveq
//   linear, mamba2, gdn, mesa   by chunks of C = 64 tokens (the kernels have less to do), per head with
//               keys dk and values dv (s = dk dv):
//               linear, mamba2  4 s + 2 C (dk + dv);              backward 8 s + C (6 dk + 4 dv)
//               gdn             6 s + C (6 dk + 4 dv) + C^2;      backward 12 s + C (16 dk + 8 dv)
//               mesa            4 s + 2 dk^2 + 2 C (dk + dv) + I;  backward linear's with values [k | v], 2 s + 2 C (dk
//               + dv) and I again; I = iterations (2 dk^2 + 4 C dk), all of them, though a solve may stop earlier
//
// As the paper prints them in its appendix D, totals of a sequence divided by T:
//   attention   inference 2 H T^2 d / 2, training 6 H T^2 d / 2: this counts one of the two products of a layer
//   ovq         inference sum_c H L d (6 N_c + 2 L), training sum_c H L d (12 N_c + 6 L): no search in training
//   gdn         inference 6 T H d^2 + T H (6 d^2 + 10 L d + L^2 / 3), training three times that; d is the key's
// It prints none for windows and for the others.
#pragma once

#include <optional>

#include "ovq/models/mixer_options.h"

namespace ovq::models {

struct ExecutedFlops {
  double forward = 0, backward = 0;
};
ExecutedFlops executed_flops(const MixerOptions& options, int64_t context);

struct PaperFlops {
  double inference = 0, training = 0;
};
std::optional<PaperFlops> paper_flops(const MixerOptions& options, int64_t context);

}  // namespace ovq::models
