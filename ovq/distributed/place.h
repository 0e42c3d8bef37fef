// Which of several processes this one is and where they meet, as those who start processes tell it: torchrun (RANK,
// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Slurm's srun (SLURM_PROCID, SLURM_NTASKS, ...) and mpirun
// (OMPI_COMM_WORLD_RANK of Open MPI, PMI_RANK of MPICH and its relatives).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ovq::distributed {

struct Place {
  int64_t rank = 0, ranks = 1;              // among all
  int64_t local_rank = 0, local_ranks = 1;  // among those of this machine
  std::string address = "127.0.0.1";        // where the store is
  int port = 29500;
  bool served = false;  // somebody else holds the store, as torchrun does; else rank 0
  int64_t attempt = 0;  // how often the processes were started again
};

using Variables = std::function<const char*(const char* name)>;  // as std::getenv

// Nothing if nobody started this process as one of several. What contradicts itself is a std::invalid_argument that
// names the variable.
std::optional<Place> place_from_environment(const Variables& variables);
std::optional<Place> place_from_environment();

}  // namespace ovq::distributed
