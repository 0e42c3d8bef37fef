// The fuzz targets under libFuzzer. OVQ_FUZZ_TARGET names the one to run.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "fuzz/targets.h"

namespace {

const ovq::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static const std::vector<ovq::fuzz::Target> all = ovq::fuzz::targets();
  const char* name = std::getenv("OVQ_FUZZ_TARGET");
  try {
    chosen = &ovq::fuzz::target_named(name == nullptr ? "" : name, all);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "OVQ_FUZZ_TARGET: %s\n", error.what());
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ovq::fuzz::may_refuse([&] { chosen->read({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
