// The sequences of a batch: one per entry, or packed along time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ovq::kernels {

// The tokens of one batch entry, or of one packed sequence in it.
struct Sequence {
  int64_t batch = 0, first = 0, length = 0;
};

// cu_seqlens [sequences + 1] from 0 to `time`; empty: not packed. Throws std::invalid_argument naming `op`.
std::vector<Sequence> check_sequences(const char* op, int64_t batch, int64_t time, std::span<const int64_t> cu_seqlens);

}  // namespace ovq::kernels
