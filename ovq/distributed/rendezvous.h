// Rank and meeting point of this process, from the environment that launchers set: torchrun (RANK, WORLD_SIZE,
// LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Slurm's srun (SLURM_PROCID, SLURM_NTASKS, ...) and mpirun
// (OMPI_COMM_WORLD_RANK of Open MPI, PMI_RANK of MPICH and its relatives).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ovq::distributed {

struct Rendezvous {
  int64_t rank = 0, ranks = 1;              // among all processes
  int64_t local_rank = 0, local_ranks = 1;  // among those on this machine
  std::string address = "127.0.0.1";        // of the machine with the store
  int port = 29500;
  bool served = false;  // another process holds the store, as with torchrun; otherwise rank 0 does
  int64_t attempt = 0;  // number of earlier starts of the processes
};

using Variables = std::function<const char*(const char* name)>;  // has the signature of std::getenv

// Returns nothing if no launcher started this process. Contradictory variables are a std::invalid_argument that names
// the variable.
std::optional<Rendezvous> rendezvous_from_environment(const Variables& variables);
std::optional<Rendezvous> rendezvous_from_environment();

}  // namespace ovq::distributed
