#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/machine_report.h"
#include "bench/ops.h"
#include "ovq/base/format.h"
#include "ovq/base/json_file.h"
#include "ovq/base/table.h"

namespace ovq::bench {
namespace {

std::vector<std::string> cells(const OpsCase& result) {
  return {result.name,
          seconds_text(result.fused.best),
          seconds_text(result.fused.median),
          seconds_text(result.plain.best),
          seconds_text(result.plain.median),
          fmt::format("{:.2f} x", result.speedup()),
          bytes_text(static_cast<double>(result.fused_peak)),
          bytes_text(static_cast<double>(result.plain_peak)),
          fmt::format("{:.1f} x", result.memory_ratio()),
          fmt::format("{:.2f}", result.bystander_cores)};
}

nlohmann::ordered_json to_json(const Timing& timing) {
  return {{"seconds_best", timing.best}, {"seconds_median", timing.median}, {"rounds", timing.seconds.size()}};
}

nlohmann::ordered_json to_json(const OpsCase& result) {
  nlohmann::ordered_json json{{"name", result.name}, {"fused_equals_plain", result.mismatch.empty()}};
  if (!result.mismatch.empty()) {
    json["mismatch"] = result.mismatch;
    return json;
  }
  json["fused"] = to_json(result.fused);
  json["fused"]["peak_bytes"] = result.fused_peak;
  json["plain"] = to_json(result.plain);
  json["plain"]["peak_bytes"] = result.plain_peak;
  json["plain_over_fused_time"] = result.speedup();
  json["plain_over_fused_bytes"] = result.memory_ratio();
  json["bystander_cores"] = result.bystander_cores;
  return json;
}

}  // namespace

bool OpsReport::matched() const {
  return std::all_of(cases.begin(), cases.end(), [](const OpsCase& result) { return result.mismatch.empty(); });
}

std::string to_table(const OpsReport& report) {
  Table table = Table::of_named_rows({"case", "fused best", "median", "plain best", "median", "faster", "fused peak",
                                      "plain peak", "smaller", "others"});
  for (const OpsCase& result : report.cases)
    if (result.mismatch.empty()) table.add(cells(result));

  std::string text = describe(report.machine) + describe_blas(report.machine.blas);
  text += describe_load(report.machine, report.bystander_cores, report.seconds) + "\n";
  text += table.text();
  for (const OpsCase& result : report.cases)
    if (!result.mismatch.empty()) text += fmt::format("{}: NOT TIMED: {}\n", result.name, result.mismatch);
  for (const std::string& note : machine_notes(report.machine, report.bystander_cores))
    text += fmt::format("note: {}\n", note);
  return text;
}

std::string to_json(const OpsReport& report) {
  nlohmann::ordered_json json{{"version", OVQ_VERSION},
                              {"machine", to_json(report.machine, report.bystander_cores)},
                              {"seconds", report.seconds},
                              {"cases", nlohmann::ordered_json::array()},
                              {"notes", machine_notes(report.machine, report.bystander_cores)}};
  for (const OpsCase& result : report.cases) json["cases"].push_back(to_json(result));
  return to_lines(json, "cases");
}

}  // namespace ovq::bench
