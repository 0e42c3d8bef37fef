#include "ovq/core/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "ovq/base/error.h"
#include "ovq/core/dispatch.h"
#include "ovq/core/targets.h"

namespace ovq::kernels {
namespace {

constexpr size_t kNone = detail::kMostTargets;
std::atomic<size_t> selected{kNone};

// One bit each, best first.
std::vector<int64_t> targets() {
  std::vector<int64_t> result;
  const int64_t usable = detail::usable_targets();
  for (size_t bit = 0; bit < detail::kMostTargets; ++bit) {
    if (usable >> bit & 1) result.push_back(int64_t{1} << bit);
  }
  return result;
}

void choose(int64_t target) {  // 0: Highway's own choice
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

size_t detail::selected_target() {
  const size_t index = selected.load(std::memory_order_acquire);
  if (index != kNone) return index;
  const char* name = std::getenv("OVQ_ISA");
  select_isa(name == nullptr ? "" : name);
  return selected.load(std::memory_order_acquire);
}

void detail::visit_targets(const std::function<void(size_t)>& visit) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::vector<int64_t> all = targets();
  for (size_t index = 0; index < all.size(); ++index) {
    choose(all[index]);
    visit(index);
  }
  choose(0);
}

std::string isa() { return available_isas()[detail::selected_target()]; }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const int64_t target : targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void select_isa(std::string_view name) {
  const std::vector<std::string> names = available_isas();
  const auto found = name.empty() ? names.begin() : std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    std::string known;
    for (const std::string& known_name : names) known += (known.empty() ? "" : ", ") + known_name;
    fail("isa", "no instruction set '", name, "'; this machine has ", known);
  }
  selected.store(found - names.begin(), std::memory_order_release);
}

}  // namespace ovq::kernels
