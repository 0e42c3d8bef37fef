#include "ovq/distributed/rendezvous.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "ovq/base/error.h"

namespace ovq::distributed {
namespace {

// The variables that a launcher sets.
struct Starter {
  const char *rank, *ranks, *local_rank, *local_ranks;
};

constexpr std::array kStarters = {
    Starter{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Starter{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Starter{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Starter{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const char* name) const { return variables_(name) != nullptr; }

  int64_t number(const char* name, int64_t least, int64_t most) const {
    const char* text = variables_(name);
    int64_t value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    check(error == std::errc() && stop == end && value >= least && value <= most, "processes", name, " is \"", text,
          "\"; must be a number from ", least, " to ", most);
    return value;
  }

  int64_t number_or(const char* name, int64_t least, int64_t most, int64_t otherwise) const {
    return has(name) ? number(name, least, most) : otherwise;
  }

  // "node[3-5,9]" -> "node3"
  std::string first_host(const char* name) const {
    const std::string list = variables_(name);
    const size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    return list.substr(0, bracket) + list.substr(bracket + 1, list.find_first_of("-,]", bracket) - bracket - 1);
  }

  std::string text(const char* name) const { return variables_(name); }

 private:
  const Variables& variables_;
};

constexpr int64_t kMost = 1 << 20;
constexpr int64_t kPorts = 65535;

void read_meeting_point(const Reader& reader, Rendezvous& rendezvous) {
  if (reader.has("MASTER_ADDR"))
    rendezvous.address = reader.text("MASTER_ADDR");
  else if (reader.has("SLURM_JOB_NODELIST"))
    rendezvous.address = reader.first_host("SLURM_JOB_NODELIST");
  else
    check(rendezvous.local_ranks == rendezvous.ranks, "processes",
          "MASTER_ADDR is not set; must name the machine of rank 0");
  if (reader.has("MASTER_PORT")) {
    rendezvous.port = static_cast<int>(reader.number("MASTER_PORT", 1, kPorts));
  } else if (reader.has("SLURM_JOB_ID")) {
    // Jobs on one machine must use different ports.
    constexpr int64_t kFirst = 20000, kCount = 10000;
    rendezvous.port = static_cast<int>(kFirst + reader.number("SLURM_JOB_ID", 0, INT64_MAX) % kCount);
  }
  rendezvous.served =
      reader.has("TORCHELASTIC_USE_AGENT_STORE") && reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  rendezvous.attempt =
      reader.number_or("TORCHELASTIC_RESTART_COUNT", 0, kMost, reader.number_or("SLURM_RESTART_COUNT", 0, kMost, 0));
}

}  // namespace

std::optional<Rendezvous> rendezvous_from_environment(const Variables& variables) {
  const Reader reader(variables);
  for (const Starter& starter : kStarters) {
    if (!reader.has(starter.rank)) continue;
    check(reader.has(starter.ranks), "processes", starter.rank, " is set and ", starter.ranks, " is not");
    Rendezvous rendezvous;
    // The number of tasks of this srun; a job may have several steps.
    const bool step = std::strcmp(starter.ranks, "SLURM_NTASKS") == 0 && reader.has("SLURM_STEP_NUM_TASKS");
    rendezvous.ranks = reader.number(step ? "SLURM_STEP_NUM_TASKS" : starter.ranks, 1, kMost);
    rendezvous.rank = reader.number(starter.rank, 0, rendezvous.ranks - 1);
    if (rendezvous.ranks == 1) return std::nullopt;
    rendezvous.local_ranks = reader.number_or(starter.local_ranks, 1, rendezvous.ranks, rendezvous.ranks);
    rendezvous.local_rank =
        reader.number_or(starter.local_rank, 0, rendezvous.ranks - 1, rendezvous.rank % rendezvous.local_ranks);
    read_meeting_point(reader, rendezvous);
    return rendezvous;
  }
  return std::nullopt;
}

std::optional<Rendezvous> rendezvous_from_environment() {
  return rendezvous_from_environment([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace ovq::distributed
