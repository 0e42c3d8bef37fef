// Two reports of `ovq bench` side by side.
#pragma once

#include <string>

namespace ovq::bench {

// Takes reports as JSON. Returns a table of every timing of the cases that both have and their ratio: above 1, `now` is
// faster. std::runtime_error if `before`, whose file is `name`, is not a report.
std::string compare_reports(const std::string& name, const std::string& before, const std::string& now);

}  // namespace ovq::bench
