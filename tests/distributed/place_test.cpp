// Rank and number of processes from the variables of each launcher.
#include "ovq/distributed/place.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace ovq::distributed::test {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Place> place_in(const Environment& environment) {
  return place_from_environment([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string error_in(const Environment& environment) {
  try {
    place_in(environment);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Place, OfTorchrun) {
  const auto place = place_in({{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "1234"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->ranks, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_ranks, 2);
  EXPECT_EQ(place->address, "node0");
  EXPECT_EQ(place->port, 1234);
  EXPECT_TRUE(place->served);
  EXPECT_EQ(place->attempt, 2);
}

TEST(Place, OfSlurm) {
  Environment srun = {{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NTASKS_PER_NODE", "4"},
                      {"SLURM_JOB_NODELIST", "n[07-08,11]"},
                      {"SLURM_JOB_ID", "123456"}};
  auto place = place_in(srun);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->ranks, 8);
  EXPECT_EQ(place->local_ranks, 4);
  EXPECT_EQ(place->address, "n07");
  EXPECT_EQ(place->port, 23456);
  EXPECT_FALSE(place->served);
  srun["SLURM_JOB_NODELIST"] = "alpha,beta[1-2]";
  srun["SLURM_STEP_NUM_TASKS"] = "6";
  place = place_in(srun);
  EXPECT_EQ(place->address, "alpha");
  EXPECT_EQ(place->ranks, 6);
}

TEST(Place, OfMpi) {
  const auto open_mpi = place_in({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 1);
  EXPECT_EQ(open_mpi->local_rank, 1);
  EXPECT_EQ(open_mpi->address, "127.0.0.1");
  const auto mpich = place_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->ranks, 3);
}

TEST(Place, IsNoneForOneProcess) {
  EXPECT_FALSE(place_in({}));
  EXPECT_FALSE(place_in({{"MASTER_ADDR", "node0"}}));
  EXPECT_FALSE(place_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
}

TEST(Place, WhatContradictsItselfIsNamed) {
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
