#include "ovq/ops/attention/checks.h"

#include <cmath>

namespace ovq::kernels {
namespace {

void check_sizes(const char* op, const char* name, const View<const float>& view) {
  check(view.batch >= 0, op, name, " has batch ", view.batch, "; must be at least 0");
  check(view.time >= 0, op, name, " has time ", view.time, "; must be at least 0");
  check(view.heads >= 1, op, name, " has ", view.heads, " heads; must be at least 1");
  check(view.dim >= 1, op, name, " has dim ", view.dim, "; must be at least 1");
  check(view.data != nullptr || view.batch * view.time == 0, op, name, " is missing");
}

}  // namespace

void check_inputs(const char* op, const View<const float>& q, const View<const float>& k, const View<const float>& v,
                  std::span<const float> beta) {
  check_sizes(op, "q", q);
  check_sizes(op, "k", k);
  check_sizes(op, "v", v);
  check(k.batch == q.batch, op, "k has batch ", k.batch, "; must equal q's ", q.batch);
  check(v.batch == q.batch, op, "v has batch ", v.batch, "; must equal q's ", q.batch);
  check(v.time == k.time, op, "v has time ", v.time, "; must equal k's ", k.time);
  check(q.heads % k.heads == 0, op, "k has ", k.heads, " heads; must divide q's ", q.heads);
  check(v.heads == k.heads, op, "v has ", v.heads, " heads; must equal k's ", k.heads);
  check(k.dim == q.dim, op, "k has dim ", k.dim, "; must equal q's ", q.dim);
  check(static_cast<int64_t>(beta.size()) == q.heads, op, "beta has ", beta.size(),
        " elements; must be one per query head, ", q.heads);
  for (size_t h = 0; h < beta.size(); ++h) {
    check(std::abs(beta[h]) <= kLargestBeta, op, "beta[", h, "] is ", beta[h], "; must be finite, and within ",
          -kLargestBeta, " and ", kLargestBeta);
  }
}

}  // namespace ovq::kernels
