// Two reports of `ovq bench` side by side.
#pragma once

#include <string>

namespace ovq::bench {

// Reports as JSON. A table of every timing of the cases that both have, and the quotient of the two: above 1, `now` is
// faster. std::runtime_error if `before`, which is called `name`, is no report.
std::string compare_reports(const std::string& name, const std::string& before, const std::string& now);

}  // namespace ovq::bench
