// What this machine can do at most, on its best instruction set (even where the kernels run on another) and with the
// threads the kernels use: the yardsticks the kernels are held to.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ovq::bench {

std::string probe_isa();

// Multiply-adds on registers alone, in FLOP per second (a multiply-add is two). Best of rounds of a few milliseconds
// over about `seconds`.
double measure_fma_peak(int threads, double seconds);

using Blocks = std::span<const std::span<const float>>;

// Seconds to read `blocks` once, each from front to back.
double read_seconds(Blocks blocks, int threads);

// Bytes per second of reading one fresh buffer of `bytes`, the best of `rounds`.
double measure_read_bandwidth(int64_t bytes, int threads, int rounds);

}  // namespace ovq::bench
