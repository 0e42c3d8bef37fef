#include "ovq/train/profile.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "ovq/base/table.h"

namespace ovq::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kKernels = "ovq::";
constexpr std::string_view kProducts[] = {"ovq::product", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};

Profile* listener = nullptr;
thread_local bool inside = false;  // a counted function is running on this thread

bool is_product(std::string_view name) {
  return std::find(std::begin(kProducts), std::end(kProducts), name) != std::end(kProducts);
}

bool counts(std::string_view name) { return name.starts_with(kKernels) || is_product(name); }

struct Running : at::ObserverContext {
  Clock::time_point start = Clock::now();
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (inside || !counts(function.name())) return nullptr;
  inside = true;
  return std::make_unique<Running>();
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  inside = false;
  const auto spent = Clock::now() - static_cast<Running*>(context)->start;
  listener->add(function.name(), std::chrono::duration<double>(spent).count());
}

}  // namespace

Profile::Profile() {
  if (listener != nullptr) throw std::logic_error("another profile is active; only one can be active at a time");
  listener = this;
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

Profile::~Profile() {
  at::removeCallback(callback_);
  listener = nullptr;
}

void Profile::add(const std::string& name, double seconds) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[name];
  ++entry.calls;
  entry.seconds += seconds;
}

std::map<std::string, Profile::Entry> Profile::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

Profile::Shares Profile::shares(double seconds) const {
  Shares shares;
  for (const auto& [name, entry] : entries()) {
    (is_product(name) ? shares.matrix_products : shares.kernels) += entry.seconds / seconds;
  }
  shares.rest = 1 - shares.kernels - shares.matrix_products;
  return shares;
}

std::string to_table(const Profile& profile, double seconds) {
  using Function = std::pair<std::string, Profile::Entry>;
  const auto entries = profile.entries();
  std::vector<Function> functions(entries.begin(), entries.end());
  std::sort(functions.begin(), functions.end(),
            [](const Function& a, const Function& b) { return a.second.seconds > b.second.seconds; });
  Table table({{.title = "where the time went", .width = 32, .align = Align::left, .gap = 0},
               {.title = "calls", .width = 9},
               {.title = "seconds", .width = 10},
               {.title = "share", .width = 7}});
  for (const auto& [name, entry] : functions) {
    table.add({name, std::to_string(entry.calls), fmt::format("{:.2f}", entry.seconds),
               fmt::format("{:.1f}%", 100 * entry.seconds / seconds)});
  }
  const Profile::Shares shares = profile.shares(seconds);
  return table.text() +
         fmt::format("kernels {:.1f} %, matrix products {:.1f} %, everything else {:.1f} % of {:.1f} s\n",
                     100 * shares.kernels, 100 * shares.matrix_products, 100 * shares.rest, seconds);
}

}  // namespace ovq::train
