// Training in several processes: starting them on this machine, and running as one of them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/show_training.h"
#include "ovq/base/fields.h"
#include "ovq/distributed/rendezvous.h"

namespace ovq::cli {

struct ProcessOptions {
  int64_t processes = 0;
  int64_t restarts = 0;
  double timeout = 300;
};

template <class Fields>
void list_fields(Fields& field, ProcessOptions& o) {
  field("processes", o.processes, "processes to start on this machine; they share the rows of each step",
        or_zero(ovq::at_least(1), "one, or those that torchrun, srun or mpirun started"));
  field("restarts", o.restarts, "times to restart all processes from the last checkpoint when one fails",
        ovq::at_least(0));
  field("timeout", o.timeout, "seconds to wait for a process before it counts as lost", above(0));
}

// Starts processes that resume a run, and waits for them. Each gets `flags`. If one ends early, all are ended;
// std::runtime_error names the failed one once no restarts are left.
void train_in_processes(const std::filesystem::path& run, const ProcessOptions& options, int threads,
                        const std::vector<std::string>& flags);

// Trains as one of several processes. `open` is called only on the first rank. If a rank fails or cannot be reached,
// prints the reason and ends the process.
void train_as_one_of(const distributed::Rendezvous& rendezvous, const ProcessOptions& options,
                     const std::function<train::Run()>& open, const ShowOptions& show);

// Number of threads for a process that shares this machine with others; `asked` unless it is 0.
int threads_of(const distributed::Rendezvous& rendezvous, int asked);

}  // namespace ovq::cli
