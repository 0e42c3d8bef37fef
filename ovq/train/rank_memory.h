// The memory that training needs in each process, besides activations.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ovq::train {

struct RankMemory {
  int64_t processes = 1;
  int64_t weights = 0, gradients = 0;  // bytes
  int64_t buckets = 0;                 // of gradients in flight
  int64_t moments = 0;                 // of AdamW, all in each process
  int64_t moments_shared = 0;          // the same with --shard-optimizer: the largest share

  int64_t total() const { return weights + gradients + buckets + moments; }
  int64_t total_shared() const { return total() - moments + moments_shared; }
};

// Gradients exist twice only until their bucket is sent, but both copies are counted in full.
RankMemory rank_memory(int64_t parameters, int64_t processes);

std::string to_table(const RankMemory& memory);
nlohmann::json to_json(const RankMemory& memory);

}  // namespace ovq::train
