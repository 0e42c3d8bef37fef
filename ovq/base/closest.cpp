#include "ovq/base/closest.h"

#include <algorithm>
#include <utility>

namespace ovq {

int64_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i - 2, i - 1 and i of the table of distances between prefixes.
  std::vector<int64_t> before(b.size() + 1), above(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) current[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, current);
    current[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min({above[j] + 1, current[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
  }
  return current[b.size()];
}

namespace {

using Found = std::vector<std::pair<int64_t, std::string>>;  // distances and names

std::vector<std::string> first_by_distance(Found found, size_t limit) {
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> result;
  for (size_t i = 0; i < std::min(limit, found.size()); ++i) result.push_back(found[i].second);
  return result;
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& names, size_t limit) {
  Found all;
  for (const std::string& candidate : names) all.emplace_back(edit_distance(name, candidate), candidate);
  return first_by_distance(std::move(all), limit);
}

}  // namespace

std::vector<std::string> closest_names(std::string_view name, const std::vector<std::string>& names, size_t limit) {
  Found found;
  for (const std::string& candidate : names) {
    const int64_t distance = edit_distance(name, candidate);
    const auto longer = static_cast<int64_t>(std::max(name.size(), candidate.size()));
    // A whole name that is the start of the other counts as one change: "positional" for "positional-recall".
    const bool starts = !name.empty() && candidate.starts_with(name);
    if (starts || distance <= std::max<int64_t>(1, longer / 3))
      found.emplace_back(starts ? std::min<int64_t>(distance, 1) : distance, candidate);
  }
  return first_by_distance(std::move(found), limit);
}

std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& names) {
  std::string message = "unknown " + std::string(kind) + " \"" + std::string(name) + "\"; ";
  const std::vector<std::string> close = closest_names(name, names, 1);
  if (!close.empty()) return message + "did you mean \"" + close[0] + "\"?";
  constexpr size_t kMostShown = 20;
  const bool some = names.size() > kMostShown;
  const std::vector<std::string> shown = some ? nearest_names(name, names, 5) : names;
  message += some ? "the nearest of " + std::to_string(names.size()) + " are " : "expected one of ";
  for (size_t i = 0; i < shown.size(); ++i) message += (i ? ", " : "") + shown[i];
  return message;
}

}  // namespace ovq
