// The machine's limits with the number of threads that the kernels use. The multiply-add peak is that of the kernels'
// instruction set, or of the machine's best one if the kernels run on another.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ovq::bench {

// The machine's best instruction set, named as in ovq/core/isa.h.
std::string best_isa();

// FLOP per second of multiply-adds on registers with one instruction set (a multiply-add counts as two). The best of
// rounds of a few milliseconds over about `seconds`.
double measure_fma_peak(const std::string& isa, int threads, double seconds);

using Blocks = std::span<const std::span<const float>>;

// Seconds to read `blocks` once, each from front to back.
double read_seconds(Blocks blocks, int threads);

// Bytes per second when reading a fresh buffer of `bytes`, the best of `rounds`.
double measure_read_bandwidth(int64_t bytes, int threads, int rounds);

}  // namespace ovq::bench
