// What GCC's instrumentation reports, for libFuzzer: a counter for each place in the code, places that hash alike share
// one. In a section of this name libFuzzer looks for counters besides those of clang.
#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t kCounters = size_t{1} << 16;
__attribute__((section("__libfuzzer_extra_counters"))) uint8_t counters[kCounters];

}  // namespace

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  const auto place = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  ++counters[(place * kMultiplier) >> 48];
}
