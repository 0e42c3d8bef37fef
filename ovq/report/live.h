// `ovq report --watch`: a page of the runs in progress, rebuilt from their metrics every time.
#pragma once

#include <filesystem>
#include <string>

namespace ovq::report {

struct LiveOptions {
  int refresh_seconds = 5;
  size_t most_runs = 12;  // the latest; more lines in a chart are unreadable
};

// Shows all runs below a directory. Lines that are only partly written are ignored.
std::string live_page(const std::filesystem::path& runs, const LiveOptions& options = {});

}  // namespace ovq::report
