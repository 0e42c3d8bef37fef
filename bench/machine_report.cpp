#include "bench/machine_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ovq::bench {
namespace {

// Above these, timings depend more on other processes than on the code.
constexpr double kBusyLoadAverage = 0.5;
constexpr double kBusyShareOfCores = 0.05;

}  // namespace

std::string describe(const Machine& machine) {
  return fmt::format("ovq {} ({}), {}, threads {} of {} cores, {}, compiler {}\n", OVQ_VERSION, machine.commit,
                     machine.isa, machine.threads, machine.cores, machine.cpu, machine.compiler);
}

std::string describe_blas(const Blas& blas) {
  if (blas.file.empty()) return "BLAS unknown\n";
  const std::string kernels =
      blas.kernels.empty() ? "" : fmt::format(", OpenBLAS with its kernels for {}", blas.kernels);
  return fmt::format("BLAS {}{}\n", blas.file, kernels);
}

std::string describe_load(const Machine& machine, double bystander_cores, double seconds) {
  return fmt::format("load average {:.2f} at the start; others kept {:.2f} cores busy meanwhile; {:.0f} s in all\n",
                     machine.load_average, bystander_cores, seconds);
}

nlohmann::ordered_json to_json(const Machine& machine, double bystander_cores) {
  nlohmann::ordered_json json{{"cpu", machine.cpu},
                              {"cores", machine.cores},
                              {"threads", machine.threads},
                              {"isa", machine.isa},
                              {"last_level_cache_bytes", machine.last_level_cache},
                              {"commit", machine.commit},
                              {"compiler", machine.compiler},
                              {"load_average", machine.load_average},
                              {"bystander_cores", bystander_cores}};
  if (!machine.blas.file.empty()) json["blas"] = machine.blas.file;
  if (!machine.blas.kernels.empty()) json["blas_kernels"] = machine.blas.kernels;
  return json;
}

std::vector<std::string> machine_notes(const Machine& machine, double bystander_cores) {
  std::vector<std::string> notes;
  if (machine.load_average > kBusyLoadAverage)
    notes.push_back(fmt::format("the machine was busy just before: load average {:.2f}", machine.load_average));
  if (bystander_cores > kBusyShareOfCores * machine.cores)
    notes.push_back(
        fmt::format("the machine was busy with other work ({:.2f} cores): times are upper bounds", bystander_cores));
  if (machine.threads > machine.cores) notes.push_back("more threads than cores");
  return notes;
}

}  // namespace ovq::bench
