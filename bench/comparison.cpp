#include "bench/comparison.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "ovq/base/format.h"
#include "ovq/base/table.h"

namespace ovq::bench {
namespace {

using nlohmann::json;

// Every "seconds_best" and "seconds_median" of a case, by its path: "best", "token best", ...
std::map<std::string, double> timings_of(const json& result, const std::string& prefix = "") {
  constexpr std::string_view kSeconds = "seconds_";
  std::map<std::string, double> timings;
  for (const auto& [key, value] : result.items()) {
    if (value.is_object()) timings.merge(timings_of(value, prefix + key + " "));
    if (value.is_number() && key.starts_with(kSeconds)) timings[prefix + key.substr(kSeconds.size())] = value;
  }
  return timings;
}

std::map<std::string, std::map<std::string, double>> cases_of(const json& report) {
  std::map<std::string, std::map<std::string, double>> cases;
  for (const json& result : report.at("cases")) cases[result.at("name")] = timings_of(result);
  return cases;
}

}  // namespace

std::string compare_reports(const std::string& name, const std::string& before, const std::string& now) {
  std::map<std::string, std::map<std::string, double>> old_cases;
  try {
    old_cases = cases_of(json::parse(before));
  } catch (const json::exception&) {
    throw std::runtime_error(fmt::format("{} is not a report of ovq bench", name));
  }
  const json report = json::parse(now);
  Table table = Table::of_named_rows({"case", "timing", "before", "now", "before / now"});
  for (const json& result : report.at("cases")) {
    const auto found = old_cases.find(result.at("name"));
    if (found == old_cases.end()) continue;
    for (const auto& [timing, seconds] : timings_of(result)) {
      const auto old = found->second.find(timing);
      if (old == found->second.end() || seconds <= 0) continue;
      table.add({found->first, timing, seconds_text(old->second), seconds_text(seconds),
                 fmt::format("{:.2f} x", old->second / seconds)});
    }
  }
  return fmt::format("\ncompared with {}\n{}", name, table.text());
}

}  // namespace ovq::bench
