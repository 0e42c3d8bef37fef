#include "ovq/core/checks.h"

namespace ovq::kernels {

std::vector<Sequence> check_sequences(const char* op, int64_t batch, int64_t time,
                                      std::span<const int64_t> cu_seqlens) {
  std::vector<Sequence> sequences;
  if (cu_seqlens.empty()) {
    for (int64_t b = 0; b < batch; ++b) sequences.push_back({b, 0, time});
    return sequences;
  }
  check(batch == 1, op, "cu_seqlens is given with batch ", batch, "; packed sequences need batch 1");
  check(cu_seqlens.front() == 0, op, "cu_seqlens starts with ", cu_seqlens.front(), "; must start with 0");
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    check(cu_seqlens[i] >= cu_seqlens[i - 1], op, "cu_seqlens[", i, "] is ", cu_seqlens[i], " after ",
          cu_seqlens[i - 1], "; must not decrease");
    sequences.push_back({0, cu_seqlens[i - 1], cu_seqlens[i] - cu_seqlens[i - 1]});
  }
  check(cu_seqlens.back() == time, op, "cu_seqlens ends with ", cu_seqlens.back(), "; must end with q's time ", time);
  return sequences;
}

}  // namespace ovq::kernels
