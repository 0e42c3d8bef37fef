// The machine in a report, as text and as JSON, and warnings about timings on it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/machine.h"

namespace ovq::bench {

std::string describe(const Machine& machine);
std::string describe_blas(const Blas& blas);
std::string describe_load(const Machine& machine, double bystander_cores, double seconds);
nlohmann::ordered_json to_json(const Machine& machine, double bystander_cores);

// Why timings on this machine may be unreliable.
std::vector<std::string> machine_notes(const Machine& machine, double bystander_cores);

}  // namespace ovq::bench
