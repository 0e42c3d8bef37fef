// `ovq report --watch`: a page over runs in progress, made anew from their metrics every time.
#pragma once

#include <filesystem>
#include <string>

namespace ovq::report {

struct LiveOptions {
  int refresh_seconds = 5;
  size_t most_runs = 12;  // the latest; a page with more lines than that cannot be read
};

// All runs below a directory, whoever makes them. What is only half written counts as not yet there.
std::string live_page(const std::filesystem::path& runs, const LiveOptions& options = {});

}  // namespace ovq::report
