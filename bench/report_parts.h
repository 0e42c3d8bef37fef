// What reports have in common: a table, the machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/machine.h"

namespace ovq::bench {

using Line = std::vector<std::string>;

// The lines as columns, the first to the left and the others to the right; each line ends with a line break.
std::vector<std::string> aligned(const std::vector<Line>& lines);

std::string describe(const Machine& machine);
std::string describe_load(const Machine& machine, double bystander_cores, double seconds);
nlohmann::ordered_json to_json(const Machine& machine, double bystander_cores);

// Why timings on this machine may not be worth much.
std::vector<std::string> machine_notes(const Machine& machine, double bystander_cores);

}  // namespace ovq::bench
