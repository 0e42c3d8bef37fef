// Sequences in a batch, one per entry or packed along time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ovq::kernels {

// A run of tokens of one batch entry: a whole entry, or one packed sequence.
struct Sequence {
  int64_t batch = 0, first = 0, length = 0;
};

// cu_seqlens [sequences + 1] from 0 to `time`; empty: not packed. Throws std::invalid_argument naming `op`.
std::vector<Sequence> check_sequences(const char* op, int64_t batch, int64_t time, std::span<const int64_t> cu_seqlens);

}  // namespace ovq::kernels
