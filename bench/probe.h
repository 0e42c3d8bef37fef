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

// Reading memory once from front to back, in bytes per second: the best of `rounds` passes over `blocks` together.
double measure_read_bandwidth(std::span<const std::span<const float>> blocks, int threads, int rounds);

// The same on one fresh buffer of `bytes`.
double measure_read_bandwidth(int64_t bytes, int threads, int rounds);

}  // namespace ovq::bench
