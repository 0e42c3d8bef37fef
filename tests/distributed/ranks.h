// Ranks as threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ovq/distributed/process_group.h"

namespace ovq::distributed::test {

using Group = std::shared_ptr<ProcessGroup>;

inline Rendezvous rendezvous_at(const StoreServer& server, int64_t rank, int64_t ranks) {
  return {
      .rank = rank, .ranks = ranks, .local_rank = rank, .local_ranks = ranks, .port = server.port(), .served = true};
}

// Runs body(group) on each rank; an exception is a test failure.
inline void on_ranks(int64_t ranks, const std::function<void(const Group&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const StoreServer server;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(std::make_shared<ProcessGroup>(rendezvous_at(server, rank, ranks), timeout));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ovq::distributed::test
