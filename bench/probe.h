// What this machine can do at most, with the threads the kernels use: the yardsticks the kernels are held to. The
// multiply-add peak is that of one instruction set: the kernels', or the machine's best where they run on another.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ovq::bench {

// The machine's best instruction set, by the name that ovq/kernels/isa.h gives it.
std::string best_isa();

// Multiply-adds on registers alone with one instruction set, in FLOP per second (a multiply-add is two). Best of rounds
// of a few milliseconds over about `seconds`.
double measure_fma_peak(const std::string& isa, int threads, double seconds);

using Blocks = std::span<const std::span<const float>>;

// Seconds to read `blocks` once, each from front to back.
double read_seconds(Blocks blocks, int threads);

// Bytes per second of reading one fresh buffer of `bytes`, the best of `rounds`.
double measure_read_bandwidth(int64_t bytes, int threads, int rounds);

}  // namespace ovq::bench
