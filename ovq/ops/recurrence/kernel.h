// The interface to instruction-set specific code for the recurrences: all chunks of some heads of one sequence, forward
// and backward. Everything above it (which heads, which thread, all checks) is plain C++.
#pragma once

#include <cstdint>

namespace ovq::kernels::recurrence {

// Tokens computed together; the borders determine the rounding. Chunks of 64 would halve the saved states but need more
// multiply-adds per token: on a Zen 4 they took 5 (SSD) to 12 % (delta rule, mesa) longer at d 128, 10 to 30 % at d 64.
inline constexpr int64_t kChunk = 32;
inline constexpr int64_t kPad = 16;  // rows of matrices in scratch memory are padded with zeros to multiples of this

inline int64_t padded(int64_t size) { return (size + kPad - 1) / kPad * kPad; }
// The row stride of a state in floats. Rows of a multiple of 256 bytes get another cache line: without it the part of a
// large state that a register tile walks through shares half of L1's sets and comes from L2. (Measured together with
// prefetching, see Ahead: no difference where L2 is as close as on Sapphire Rapids.)
inline int64_t state_stride(int64_t columns) {
  const int64_t row = padded(columns);
  return row > 64 && row % 64 == 0 ? row + kPad : row;
}
inline int64_t chunks_of(int64_t length) { return (length + kChunk - 1) / kChunk; }

// Results with more floats than this bypass the caches if rows are whole vectors: they would not stay cached anyway,
// and a line that is only written need not be read first. This makes forward 7 (delta rule) to 10 % (SSD) faster and
// backward 5 %.
inline constexpr int64_t kCachedFloats = 1 << 22;

inline bool is_aligned(const float* data) { return reinterpret_cast<uintptr_t>(data) % (kPad * sizeof(float)) == 0; }

// A tensor [batch, time, heads, dim] like the kernels' views; rows are contiguous.
template <class T>
struct Strided {
  Strided() = default;
  template <class View>
  Strided(const View& view)
      : data(view.data),
        heads(view.heads),
        dim(view.dim),
        batch_stride(view.batch_stride),
        time_stride(view.time_stride),
        head_stride(view.head_stride),
        past_caches(view.batch * view.time * heads * dim > kCachedFloats && is_aligned(data) &&
                    (dim | batch_stride | time_stride | head_stride) % kPad == 0) {}

  T* row(int64_t b, int64_t t, int64_t h) const { return data + b * batch_stride + t * time_stride + h * head_stride; }

  T* data = nullptr;  // nullptr: absent
  int64_t heads = 0, dim = 0;
  int64_t batch_stride = 0, time_stride = 0, head_stride = 0;
  bool past_caches = false;
};

// The tokens of one batch entry, or of one packed sequence.
struct Run {
  int64_t batch = 0, first = 0, length = 0;
};

// One of the sequences of a call.
struct Piece {
  Run sequence;
  int64_t index = 0;         // of its states
  int64_t first_border = 0;  // sum of chunks + 1 of the sequences before it
};

// The heads of a sequence that one thread computes together, chunk by chunk. Rows of neighbouring heads are on the same
// pages; head by head, the extra TLB misses took 5 to 8 % of forward's time.
struct HeadRange {
  int64_t first = 0, count = 1;
};

// States at the chunk borders, saved by forward for backward: before each chunk and after the last one, as [key_dim,
// state_stride(columns)] matrices for each sequence and head.
struct Borders {
  float* data = nullptr;  // nullptr: not wanted
  int64_t heads = 0, key_dim = 0, columns = 0;
  int64_t more = 0;  // floats after each matrix for other data of the chunk that follows
  bool past_caches = false;

  int64_t matrix() const { return key_dim * state_stride(columns) + more; }
  // The state before this chunk; nullptr if states are not wanted.
  float* at(const Piece& piece, int64_t head, int64_t chunk) const {
    const int64_t count = chunks_of(piece.sequence.length) + 1;
    return data == nullptr ? nullptr : data + (piece.first_border * heads + head * count + chunk) * matrix();
  }
};

// Divides scratch memory into parts; without memory it only counts.
class Carver {
 public:
  explicit Carver(float* data) : data_(data) {}
  float* take(int64_t rows, int64_t stride) {
    float* const part = data_ == nullptr ? nullptr : data_ + used_;
    used_ += padded(rows * stride);
    return part;
  }
  int64_t used() const { return used_; }

 private:
  float* data_;
  int64_t used_ = 0;
};

// Decayed linear attention; the heads of a group share queries and keys:
//   S_t = e^{g_t} S_{t-1} + k_t (step_t v_t)^T,   o_t = scale S_t^T q_t + skip v_t
// with g given, or g_t = rate step_t.
struct LinearCall {
  Strided<const float> q, k;     // [B, T, groups, dk]
  Strided<const float> v;        // [B, T, heads, dv]
  Strided<const float> g;        // [B, T, heads, 1]; absent: zeros, or rates and steps
  Strided<const float> steps;    // [B, T, heads, 1]; absent: ones
  const float* rates = nullptr;  // [heads], together with steps
  const float* skips = nullptr;  // [heads]; absent: zeros
  float scale = 1;
  Strided<const float> state;  // [sequences, dk, heads, dv]; absent: zeros
  Borders borders;
  // forward
  Strided<float> o;           // [B, T, heads, dv]
  Strided<float> last_state;  // as state; absent: not wanted
  // backward
  Strided<const float> d_o;
  Strided<const float> d_last_state;  // absent: zeros
  Strided<float> d_q, d_k, d_v;
  Strided<float> d_g, d_steps;  // absent: not wanted
  Strided<float> d_state;       // absent: not wanted
  double* d_rates = nullptr;    // [sequences, heads]
  double* d_skips = nullptr;    // [sequences, heads]

  int64_t group() const { return v.heads / k.heads; }
};

// The gated delta rule of one head (see gated_delta_rule.h).
struct DeltaCall {               // the states of `borders` are followed by V' of the chunks, [kChunk, padded(dv)]
  Strided<const float> q, k;     // [B, T, H, dk]
  Strided<const float> v;        // [B, T, H, dv]
  Strided<const float> g, beta;  // [B, T, H, 1]
  float scale = 1;
  Strided<const float> state;  // [sequences, dk, H, dv]; absent: zeros
  Borders borders;
  // forward
  Strided<float> o;           // [B, T, H, dv]
  Strided<float> last_state;  // absent: not wanted
  // backward
  Strided<const float> d_o;
  Strided<const float> d_last_state;  // absent: zeros
  Strided<float> d_q, d_k, d_v, d_g, d_beta;
  Strided<float> d_state;  // absent: not wanted
};

// Mesa of one head (see mesa.h).
struct MesaCall {
  Strided<const float> q, k;      // [B, T, H, dk]
  Strided<const float> v;         // [B, T, H, dv]
  Strided<const float> g, beta;   // [B, T, H, 1]
  const float* lambda = nullptr;  // [H, dk]
  int64_t iterations = 0;
  Strided<const float> state;  // [sequences, dk, H, dk + dv]; absent: zeros
  Borders borders;             // of dk + dv columns
  // forward
  Strided<float> o;           // [B, T, H, dv]
  Strided<float> solution;    // [B, T, H, dk]; absent: not wanted
  Strided<float> last_state;  // absent: not wanted
  // backward
  Strided<const float> solved;  // the solution of forward
  Strided<const float> d_o;
  Strided<const float> d_last_state;  // absent: zeros
  Strided<float> d_q, d_k, d_v, d_g, d_beta;
  double* d_lambda = nullptr;  // [sequences, H, dk]
  Strided<float> d_state;      // absent: not wanted
};

inline constexpr int64_t kConvolutionRows = 64, kConvolutionChannels = 128;  // of a block; its rows fit in L1

// The short convolution (see short_convolution.h).
struct ConvolutionCall {
  Strided<const float> x;       // [B, T, 1, C]
  const float* taps = nullptr;  // [width, C]
  const float* bias = nullptr;  // [C]; nullptr: zeros
  Strided<const float> before;  // [B, width - 1, 1, C]; absent: zeros
  int64_t width = 0;
  bool silu = false;
  Strided<float> y;
  // backward
  Strided<const float> d_y;
  Strided<float> d_x;
  Strided<float> d_before;  // absent: not wanted
};
// The rows and channels of one block.
struct ConvolutionBlock {
  Run sequence;
  int64_t first_row = 0, rows = 0;  // in the sequence
  int64_t first_channel = 0, channels = 0;
  float* sums = nullptr;  // backward: [width + 1, kConvolutionChannels], gradients of taps and bias
};

struct RecurrenceKernels {
  const char* isa;

  // The floats of scratch memory that the functions below need for `heads` heads at a time.
  int64_t (*linear_scratch)(const LinearCall& call, int64_t heads, bool backward);
  int64_t (*delta_scratch)(const DeltaCall& call, int64_t heads, bool backward);
  int64_t (*mesa_scratch)(const MesaCall& call, bool backward);
  int64_t (*convolution_scratch)(const ConvolutionCall& call);

  void (*linear_forward)(const LinearCall& call, const Piece& piece, const HeadRange& heads, float* scratch);
  void (*linear_backward)(const LinearCall& call, const Piece& piece, const HeadRange& heads, float* scratch);
  void (*delta_forward)(const DeltaCall& call, const Piece& piece, const HeadRange& heads, float* scratch);
  void (*delta_backward)(const DeltaCall& call, const Piece& piece, const HeadRange& heads, float* scratch);
  void (*mesa_forward)(const MesaCall& call, const Piece& piece, int64_t head, float* scratch);
  void (*mesa_backward)(const MesaCall& call, const Piece& piece, int64_t head, float* scratch);
  void (*convolution_forward)(const ConvolutionCall& call, const ConvolutionBlock& block, float* scratch);
  void (*convolution_backward)(const ConvolutionCall& call, const ConvolutionBlock& block, float* scratch);
};

const RecurrenceKernels& recurrence_kernels();  // of the selected instruction set

}  // namespace ovq::kernels::recurrence
