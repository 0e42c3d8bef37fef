// Rank and number of processes from the variables of each launcher.
#include "ovq/distributed/rendezvous.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace ovq::distributed::test {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Rendezvous> rendezvous_in(const Environment& environment) {
  return rendezvous_from_environment([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string error_in(const Environment& environment) {
  try {
    rendezvous_in(environment);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Rendezvous, OfTorchrun) {
  const auto rendezvous = rendezvous_in({{"RANK", "3"},
                                         {"WORLD_SIZE", "4"},
                                         {"LOCAL_RANK", "1"},
                                         {"LOCAL_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "node0"},
                                         {"MASTER_PORT", "1234"},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                         {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(rendezvous);
  EXPECT_EQ(rendezvous->rank, 3);
  EXPECT_EQ(rendezvous->ranks, 4);
  EXPECT_EQ(rendezvous->local_rank, 1);
  EXPECT_EQ(rendezvous->local_ranks, 2);
  EXPECT_EQ(rendezvous->address, "node0");
  EXPECT_EQ(rendezvous->port, 1234);
  EXPECT_TRUE(rendezvous->served);
  EXPECT_EQ(rendezvous->attempt, 2);
}

TEST(Rendezvous, OfSlurm) {
  Environment srun = {{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NTASKS_PER_NODE", "4"},
                      {"SLURM_JOB_NODELIST", "n[07-08,11]"},
                      {"SLURM_JOB_ID", "123456"}};
  auto rendezvous = rendezvous_in(srun);
  ASSERT_TRUE(rendezvous);
  EXPECT_EQ(rendezvous->rank, 5);
  EXPECT_EQ(rendezvous->ranks, 8);
  EXPECT_EQ(rendezvous->local_ranks, 4);
  EXPECT_EQ(rendezvous->address, "n07");
  EXPECT_EQ(rendezvous->port, 23456);
  EXPECT_FALSE(rendezvous->served);
  srun["SLURM_JOB_NODELIST"] = "alpha,beta[1-2]";
  srun["SLURM_STEP_NUM_TASKS"] = "6";
  rendezvous = rendezvous_in(srun);
  EXPECT_EQ(rendezvous->address, "alpha");
  EXPECT_EQ(rendezvous->ranks, 6);
}

TEST(Rendezvous, OfMpi) {
  const auto open_mpi = rendezvous_in({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 1);
  EXPECT_EQ(open_mpi->local_rank, 1);
  EXPECT_EQ(open_mpi->address, "127.0.0.1");
  const auto mpich = rendezvous_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->ranks, 3);
}

TEST(Rendezvous, IsNoneForOneProcess) {
  EXPECT_FALSE(rendezvous_in({}));
  EXPECT_FALSE(rendezvous_in({{"MASTER_ADDR", "node0"}}));
  EXPECT_FALSE(rendezvous_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
}

TEST(Rendezvous, WhatContradictsItselfIsNamed) {
  EXPECT_EQ(error_in({{"RANK", "1"}}), "[processes] RANK is set and WORLD_SIZE is not");
  EXPECT_EQ(error_in({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "[processes] RANK is \"2\"; must be a number from 0 to 1");
  EXPECT_EQ(error_in({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "[processes] RANK is \"x\"; must be a number from 0 to 1");
  EXPECT_EQ(error_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "0"}}),
            "[processes] MASTER_PORT is \"0\"; must be a number from 1 to 65535");
  EXPECT_EQ(
      error_in({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      "[processes] MASTER_ADDR is not set; must name the machine of rank 0");
}

}  // namespace
}  // namespace ovq::distributed::test
