// `ovq report`: a page that shows for every claim what was measured and whether it holds, with figures.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "ovq/plot/figure.h"
#include "ovq/report/claims.h"

namespace ovq::report {

struct ReportSummary {
  size_t claims = 0, hold = 0, fail = 0;  // the remaining ones are open
  size_t charts = 0, charts_with_lines = 0;
  size_t runs = 0;
};

struct Report {
  std::string html;
  std::map<std::string, plot::Figure> figures;  // by chart name; only charts that show something
  ReportSummary summary;
};

Report make_report(const ClaimsFile& claims, const Evidence& evidence);

struct ReportPaths {
  std::filesystem::path claims, results;  // inputs
  std::filesystem::path out;              // receives index.html and figures/*.svg
  std::filesystem::path png;              // receives *.png made by gnuplot; empty: none
};

// `warn` receives a message for each invalid result file. std::runtime_error if gnuplot is asked for and fails.
ReportSummary write_report(const ReportPaths& paths, const std::function<void(const std::string&)>& warn);

}  // namespace ovq::report
