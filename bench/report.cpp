#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/machine_report.h"
#include "ovq/base/format.h"
#include "ovq/base/json_file.h"
#include "ovq/base/table.h"

namespace ovq::bench {
namespace {

constexpr double kSteadyPeak = 0.95;  // share of the best FMA peak; below it the measurement was disturbed

std::string human_figure(const Figure& figure) {
  if (figure.unit == "bytes") return bytes_text(figure.value);
  if (figure.unit == "bytes/s") return fmt::format("{:.2f} GB/s", figure.value * 1e-9);
  if (figure.unit == "s") return seconds_text(figure.value);
  return figure.unit.empty() ? fmt::format("{:.2f}", figure.value)
                             : fmt::format("{:.2f} {}", figure.value, figure.unit);
}

double percent_of_peak(const Report& report, const CaseResult& result) {
  return 100 * result.flops / result.timing.best / report.fma_peak;
}

std::vector<std::string> cells(const Report& report, const CaseResult& result) {
  const bool counted = result.flops > 0;
  return {result.name,
          seconds_text(result.timing.best),
          seconds_text(result.timing.median),
          counted ? fmt::format("{:.1f}", result.flops / result.timing.best * 1e-9) : "",
          counted ? fmt::format("{:.1f}", percent_of_peak(report, result)) : "",
          result.bytes_allocated ? bytes_text(static_cast<double>(*result.bytes_allocated)) : "",
          fmt::format("{:.2f}", result.bystander_cores)};
}

std::string header(const Report& report) {
  const Machine& machine = report.machine;
  std::string text = describe(machine);
  text += fmt::format("FMA peak {:.1f} GFLOP/s ({}); ", report.fma_peak * 1e-9, machine.isa);
  if (report.best_isa_peak > 0) text += fmt::format("{:.1f} with {}; ", report.best_isa_peak * 1e-9, report.best_isa);
  text += fmt::format("read bandwidth {:.1f} GB/s ({:.0f} MB; last-level cache {:.0f} MB)\n",
                      report.read_bandwidth * 1e-9, report.read_bytes * 1e-6, machine.last_level_cache * 1e-6);
  text += describe_load(machine, report.bystander_cores, report.seconds);
  return text;
}

nlohmann::ordered_json to_json(const Figure& figure) {
  return {{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
}

nlohmann::ordered_json to_json(const Report& report, const CaseResult& result) {
  nlohmann::ordered_json json{{"name", result.name}, {"matches_reference", result.mismatch.empty()}};
  if (!result.mismatch.empty()) {
    json["mismatch"] = result.mismatch;
    return json;
  }
  json["seconds_best"] = result.timing.best;
  json["seconds_median"] = result.timing.median;
  json["rounds"] = result.timing.seconds.size();
  if (result.flops > 0) {
    json["flops"] = result.flops;
    json["gflops_per_second"] = result.flops / result.timing.best * 1e-9;
    json["percent_of_peak"] = percent_of_peak(report, result);
    json["percent_of_peak_median"] = 100 * result.flops / result.timing.median / report.fma_peak;
  }
  if (result.bytes_allocated) json["bytes_allocated"] = *result.bytes_allocated;
  json["bystander_cores"] = result.bystander_cores;
  for (const Figure& figure : result.figures) json["figures"].push_back(to_json(figure));
  return json;
}

}  // namespace

bool Report::matched() const {
  return std::all_of(cases.begin(), cases.end(), [](const CaseResult& result) { return result.mismatch.empty(); });
}

std::vector<std::string> Report::notes() const {
  std::vector<std::string> notes = machine_notes(machine, bystander_cores);
  if (std::min(fma_peak_before, fma_peak_after) < kSteadyPeak * fma_peak)
    notes.push_back(fmt::format("the FMA peak moved during the run: {:.1f} GFLOP/s before, {:.1f} after",
                                fma_peak_before * 1e-9, fma_peak_after * 1e-9));
  return notes;
}

std::string to_table(const Report& report) {
  Table table = Table::of_named_rows({"case", "best", "median", "GFLOP/s", "% peak", "allocated", "others"});
  for (const CaseResult& result : report.cases)
    if (result.mismatch.empty()) table.add(cells(report, result));
  const std::vector<std::string> rows = table.lines();

  std::string text = header(report) + "\n" + rows[0];
  size_t timed = 1;
  for (const CaseResult& result : report.cases) {
    if (!result.mismatch.empty()) {
      text += fmt::format("{}: NOT TIMED: {}\n", result.name, result.mismatch);
      continue;
    }
    text += rows[timed++];
    for (const Figure& figure : result.figures) text += fmt::format("    {}: {}\n", figure.name, human_figure(figure));
  }
  if (!report.comparisons.empty()) text += "\n";
  for (const Figure& figure : report.comparisons) text += fmt::format("{}: {}\n", figure.name, human_figure(figure));
  for (const std::string& note : report.notes()) text += fmt::format("note: {}\n", note);
  return text;
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json json{
      {"version", OVQ_VERSION},
      {"machine", to_json(report.machine, report.bystander_cores)},
      {"fma_peak_gflops_per_second",
       {{"isa", report.machine.isa},
        {"used", report.fma_peak * 1e-9},
        {"before", report.fma_peak_before * 1e-9},
        {"after", report.fma_peak_after * 1e-9},
        {"best_isa", report.best_isa},
        {"with_best_isa", (report.best_isa_peak > 0 ? report.best_isa_peak : report.fma_peak) * 1e-9}}},
      {"read_bandwidth", {{"bytes_per_second", report.read_bandwidth}, {"buffer_bytes", report.read_bytes}}},
      {"seconds", report.seconds},
      {"cases", nlohmann::ordered_json::array()},
      {"comparisons", nlohmann::ordered_json::array()},
      {"notes", report.notes()}};
  for (const CaseResult& result : report.cases) json["cases"].push_back(to_json(report, result));
  for (const Figure& figure : report.comparisons) json["comparisons"].push_back(to_json(figure));
  return to_lines(json, "cases");
}

}  // namespace ovq::bench
