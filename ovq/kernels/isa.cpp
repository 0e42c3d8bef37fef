#include "ovq/kernels/isa.h"

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "ovq/base/error.h"
#include "ovq/kernels/simd/read_kernels.h"
#include "ovq/kernels/simd/recurrence_kernels.h"
#include "ovq/kernels/simd/targets.h"

namespace ovq::kernels {

namespace recurrence {
const RecurrenceKernels& recurrence_kernels_of(int64_t target);
}

namespace detail {

const ReadKernels& kernels_of(int64_t target);

namespace {

std::atomic<const ReadKernels*> selected{nullptr};
std::atomic<const recurrence::RecurrenceKernels*> selected_recurrences{nullptr};

std::vector<int64_t> targets() {
  std::vector<int64_t> result;
  const int64_t usable = usable_targets();
  for (int bit = 0; bit < 63; ++bit) {
    if (usable >> bit & 1) result.push_back(int64_t{1} << bit);
  }
  return result;
}

void select(std::string_view name) {
  static std::mutex mutex;  // The look-up uses Highway's process-wide choice.
  const std::lock_guard lock(mutex);
  std::string known;
  for (const int64_t target : targets()) {
    if (name.empty() || name == hwy::TargetName(target)) {
      selected_recurrences.store(&recurrence::recurrence_kernels_of(target), std::memory_order_release);
      selected.store(&kernels_of(target), std::memory_order_release);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  fail("isa", "no instruction set '", name, "'; this machine has ", known);
}

// The selected kernels; by default those that OVQ_ISA names.
template <class Kernels>
const Kernels& loaded(const std::atomic<const Kernels*>& kernels) {
  if (kernels.load(std::memory_order_acquire) == nullptr) {
    const char* name = std::getenv("OVQ_ISA");
    select(name == nullptr ? "" : name);
  }
  return *kernels.load(std::memory_order_acquire);
}

}  // namespace

const ReadKernels& read_kernels() { return loaded(selected); }

}  // namespace detail

const recurrence::RecurrenceKernels& recurrence::recurrence_kernels() {
  return detail::loaded(detail::selected_recurrences);
}

std::string isa() { return detail::read_kernels().isa; }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const int64_t target : detail::targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void select_isa(std::string_view name) { detail::select(name); }

}  // namespace ovq::kernels
