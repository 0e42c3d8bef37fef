#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/generate.h"
#include "bench/machine_report.h"
#include "ovq/base/format.h"
#include "ovq/base/json_file.h"
#include "ovq/base/table.h"

namespace ovq::bench {
namespace {

std::string percent_of(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB/s", 1e-9 * bytes); }

std::vector<std::string> generate_cells(const GenerateReport& report, const GenerateCase& one) {
  std::vector<std::string> cells = {one.name,
                                    fmt::format("{:.1f}", 1 / one.token.median),
                                    seconds_text(one.token.median),
                                    bytes_text(static_cast<double>(one.weight_bytes)),
                                    bytes_text(static_cast<double>(one.state_bytes)),
                                    gigabytes(one.bandwidth()),
                                    gigabytes(one.read_bandwidth()),
                                    percent_of(one.bandwidth() / one.read_bandwidth()),
                                    seconds_text(one.prompt.best),
                                    fmt::format("{:.0f}", static_cast<double>(one.prompt_tokens) / one.prompt.best),
                                    fmt::format("{:.0f}", 1e-9 * one.flops()),
                                    percent_of(one.flops() / report.peak)};
  if (one.loss) {
    cells.push_back(fmt::format("{:.5f}", one.loss->total.loss()));
    cells.push_back(fmt::format("{:.5f}", one.loss->total.bits_per_byte()));
  }
  return cells;
}

nlohmann::ordered_json to_json(const GenerateReport& report, const GenerateCase& one) {
  nlohmann::ordered_json json{{"name", one.name}, {"matches_other_isa", one.mismatch.empty()}};
  if (!one.mismatch.empty()) {
    json["mismatch"] = one.mismatch;
    return json;
  }
  json["token"] = {{"seconds_best", one.token.best},
                   {"seconds_median", one.token.median},
                   {"rounds", one.token.seconds.size()},
                   {"weight_bytes", one.weight_bytes},
                   {"state_bytes", one.state_bytes},
                   {"bytes_per_second", one.bandwidth()},
                   {"read_bytes_per_second", one.read_bandwidth()},
                   {"of_read_bandwidth", one.bandwidth() / one.read_bandwidth()}};
  json["prompt"] = {{"seconds_best", one.prompt.best},     {"seconds_median", one.prompt.median},
                    {"rounds", one.prompt.seconds.size()}, {"tokens", one.prompt_tokens},
                    {"flops", one.prompt_flops},           {"flops_per_second", one.flops()},
                    {"of_peak", one.flops() / report.peak}};
  if (one.loss) {
    json["loss"] = {{"mean", one.loss->total.loss()},
                    {"bits_per_byte", one.loss->total.bits_per_byte()},
                    {"targets", one.loss->total.targets},
                    {"windows", one.loss->windows}};
  }
  json["bystander_cores"] = one.bystander_cores;
  return json;
}

}  // namespace

std::string to_table(const GenerateReport& report) {
  std::string text = describe(report.machine) + describe_blas(report.machine.blas) +
                     fmt::format("{}, one sequence, {} weights; multiply-add peak {:.0f} GFLOP/s\n", report.model,
                                 report.trained ? "trained" : "random", 1e-9 * report.peak) +
                     describe_load(report.machine, report.bystander_cores, report.seconds) + "\n";
  std::vector<std::string> columns = {"weights and states", "tokens/s", "token",  "weights",  "states",  "read",
                                      "possible",           "of it",    "prompt", "tokens/s", "GFLOP/s", "of peak"};
  if (std::any_of(report.cases.begin(), report.cases.end(), [](const GenerateCase& one) { return one.loss; })) {
    columns.insert(columns.end(), {"loss", "bits/byte"});
  }
  Table table = Table::of_named_rows(columns);
  for (const GenerateCase& one : report.cases)
    if (one.mismatch.empty()) table.add(generate_cells(report, one));
  text += table.text();
  for (const GenerateCase& one : report.cases)
    if (!one.mismatch.empty()) text += fmt::format("{}: NOT TIMED: {}\n", one.name, one.mismatch);
  for (const std::string& note : machine_notes(report.machine, report.bystander_cores))
    text += fmt::format("note: {}\n", note);
  return text;
}

std::string to_json(const GenerateReport& report) {
  nlohmann::ordered_json json{{"version", OVQ_VERSION},
                              {"machine", to_json(report.machine, report.bystander_cores)},
                              {"model", report.model},
                              {"trained", report.trained},
                              {"peak_flops_per_second", report.peak},
                              {"seconds", report.seconds},
                              {"cases", nlohmann::ordered_json::array()},
                              {"notes", machine_notes(report.machine, report.bystander_cores)}};
  for (const GenerateCase& one : report.cases) json["cases"].push_back(to_json(report, one));
  return to_lines(json, "cases");
}

}  // namespace ovq::bench
