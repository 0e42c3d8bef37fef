#include "bench/probe.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "ovq/base/error.h"
#include "ovq/core/buffer.h"
#include "ovq/core/parallel.h"
#include "ovq/core/targets.h"  // must be the kernels' targets, since the names must match

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/probe.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"

#ifndef OVQ_BENCH_PROBE_OF_TARGET
#define OVQ_BENCH_PROBE_OF_TARGET
namespace ovq::bench {

struct ProbeOfTarget {
  const char* isa;
  float (*fma_chains)(int64_t steps, float scale, int64_t& flops);
  float (*read_once)(const float* data, int64_t count);
};

}  // namespace ovq::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace ovq::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 12 chains hide the latency of two multiply-add units (8 suffice at latency 4) and leave registers for the operands.
// Each step depends on the previous one, so that none can be hoisted or merged. Adds the executed FLOPs to `flops`.
float fma_chains(int64_t steps, float scale, int64_t& flops) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, scale);
  const auto y = hn::Set(d, 1.0f - scale);
  auto a0 = hn::Iota(d, 0.0f), a1 = hn::Iota(d, 1.0f), a2 = hn::Iota(d, 2.0f), a3 = hn::Iota(d, 3.0f);
  auto a4 = hn::Iota(d, 4.0f), a5 = hn::Iota(d, 5.0f), a6 = hn::Iota(d, 6.0f), a7 = hn::Iota(d, 7.0f);
  auto a8 = hn::Iota(d, 8.0f), a9 = hn::Iota(d, 9.0f), a10 = hn::Iota(d, 10.0f), a11 = hn::Iota(d, 11.0f);
  for (int64_t i = 0; i < steps; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y);
    a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y);
    a10 = hn::MulAdd(a10, x, y);
    a11 = hn::MulAdd(a11, x, y);
  }
  flops += 12 * 2 * steps * static_cast<int64_t>(hn::Lanes(d));
  const auto low = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(a4, a5));
  const auto high = hn::Add(hn::Add(hn::Add(a6, a7), hn::Add(a8, a9)), hn::Add(a10, a11));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
}

float read_once(const float* data, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a0 = hn::Zero(d), a1 = hn::Zero(d), a2 = hn::Zero(d), a3 = hn::Zero(d);
  for (; count >= 4 * lanes; count -= 4 * lanes, data += 4 * lanes) {
    a0 = hn::Add(a0, hn::LoadU(d, data));
    a1 = hn::Add(a1, hn::LoadU(d, data + lanes));
    a2 = hn::Add(a2, hn::LoadU(d, data + 2 * lanes));
    a3 = hn::Add(a3, hn::LoadU(d, data + 3 * lanes));
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a0, a1), hn::Add(a2, a3))));
  for (; count > 0; --count) sum += *data++;
  return sum;
}

const ProbeOfTarget& probe_of_target() {
  static const ProbeOfTarget probe = {hwy::TargetName(HWY_TARGET), fma_chains, read_once};
  return probe;
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::bench {
namespace {

HWY_EXPORT(probe_of_target);

const ProbeOfTarget& best_probe() { return HWY_DYNAMIC_DISPATCH(probe_of_target)(); }

// The probe compiled for `isa`. Restores Highway's own choice, which the whole process shares.
const ProbeOfTarget& probe_of(const std::string& isa) {
  const int64_t usable = kernels::detail::usable_targets();
  const ProbeOfTarget* found = nullptr;
  for (int bit = 0; bit < 63 && found == nullptr; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((usable & target) == 0 || isa != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    found = &best_probe();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  if (found == nullptr) fail("bench", "this machine has no instruction set '", isa, "'");
  return *found;
}

// Uses the result so that the compiler keeps the computation.
std::atomic<float> sink;

void read_blocks(Blocks blocks, int threads) {
  kernels::parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t i, int) {
    sink = best_probe().read_once(blocks[i].data(), static_cast<int64_t>(blocks[i].size()));
  });
}

}  // namespace

std::string best_isa() { return best_probe().isa; }

double measure_fma_peak(const std::string& isa, int threads, double seconds) {
  const ProbeOfTarget& probe = probe_of(isa);
  constexpr int64_t kSteps = 200'000;
  const int64_t blocks = 8 * threads;
  std::vector<int64_t> flops(blocks);
  const auto round = [&] {
    std::fill(flops.begin(), flops.end(), 0);
    kernels::parallel_for(blocks, threads, [&](int64_t block, int) {
      int64_t done = 0;
      sink = probe.fma_chains(kSteps, 0.999f, done);
      flops[block] = done;
    });
  };
  const double best = repeat(round, {.min_rounds = 3, .max_rounds = 1000, .seconds = seconds}).best;
  return static_cast<double>(blocks * flops[0]) / best;
}

double read_seconds(Blocks blocks, int threads) {
  return time_once([&] { read_blocks(blocks, threads); });
}

double measure_read_bandwidth(int64_t bytes, int threads, int rounds) {
  constexpr int64_t kBlock = 1 << 18;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float)) / kBlock;
  const auto data = kernels::Buffer<float>::zeros(count * kBlock);
  std::vector<std::span<const float>> blocks;
  for (int64_t i = 0; i < count; ++i) blocks.emplace_back(data.data() + i * kBlock, kBlock);
  const auto round = [&] { read_blocks(blocks, threads); };
  const double best = repeat(round, {.min_rounds = rounds, .max_rounds = rounds}).best;
  return static_cast<double>(count * kBlock) * sizeof(float) / best;
}

}  // namespace ovq::bench
#endif  // HWY_ONCE
