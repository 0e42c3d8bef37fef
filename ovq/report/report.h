// `ovq report`: one page that says of every claim what was measured and whether it holds, with the figures.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "ovq/report/claims.h"

namespace ovq::report {

struct ReportSummary {
  size_t claims = 0, hold = 0, fail = 0;  // the others are open
  size_t charts = 0, charts_with_lines = 0;
  size_t runs = 0;
};

struct Report {
  std::string html;
  std::map<std::string, std::string> figures;  // SVG files by the chart's name, of charts that show something
  ReportSummary summary;
};

Report make_report(const ClaimsFile& claims, const Evidence& evidence);

// Writes out/index.html and out/figures/*.svg. `warn` hears of files among the results that are none.
ReportSummary write_report(const std::filesystem::path& claims, const std::filesystem::path& results,
                           const std::filesystem::path& out, const std::function<void(const std::string&)>& warn);

}  // namespace ovq::report
