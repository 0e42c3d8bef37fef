#include "bench/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "bench/commit.h"
#include "ovq/core/isa.h"
#include "ovq/core/parallel.h"

namespace ovq::bench {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line.starts_with("model name")) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// From sysfs because sysconf() is wrong on virtual machines.
int64_t last_level_cache() {
  constexpr int64_t kUnknown = 32 << 20;
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 'B';
    if (file >> size) {
      file >> unit;
      largest = std::max(largest, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
    }
  }
  return largest > 0 ? largest : kUnknown;
}

double seconds(const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; }

}  // namespace

Machine describe_machine() {
  Machine machine{.cpu = cpu_model(),
                  .cores = usable_cores(),
                  .last_level_cache = last_level_cache(),
                  .isa = kernels::isa(),
                  .threads = kernels::max_threads(),
                  .commit = OVQ_COMMIT,
#ifdef __VERSION__
                  .compiler = __VERSION__,
#endif
                  .blas = loaded_blas()};
  double load = 0;
  if (getloadavg(&load, 1) == 1) machine.load_average = load;
  return machine;
}

Bystanders::Bystanders() : start_(sample()) {}

Bystanders::Sample Bystanders::sample() {
  Sample now{.wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count()};
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) now.own = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
  if (stat >> name >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal) {
    const double tick = 1.0 / sysconf(_SC_CLK_TCK);
    now.machine_busy = (user + nice + system + irq + softirq) * tick;
    now.stolen = steal * tick;
  }
  return now;
}

double Bystanders::busy_cores() const {
  const Sample now = sample();
  const double wall = now.wall - start_.wall;
  const double others = (now.machine_busy - start_.machine_busy) - (now.own - start_.own);
  return wall > 0 ? std::max(0.0, (others + now.stolen - start_.stolen) / wall) : 0;
}

}  // namespace ovq::bench
