// The selected instruction set: by select_isa, and by OVQ_ISA in a child process.
#include "ovq/core/isa.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/rows/kernel.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

TEST(Isa, BestIsTheDefault) {
  ASSERT_FALSE(available_isas().empty());
  select_isa("");
  EXPECT_EQ(isa(), available_isas().front());
}

TEST(Isa, NamesAreDistinct) {
  std::vector<std::string> names = available_isas();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(Isa, EachCanBeSelected) {
  for (const std::string& name : available_isas()) {
    select_isa(name);
    EXPECT_EQ(isa(), name);
    // As the code of the kernels reports it.
    EXPECT_EQ(detail::read_kernels().isa, name);
    EXPECT_EQ(recurrence::recurrence_kernels().isa, name);
    EXPECT_EQ(detail::row_kernels().isa, name);
    EXPECT_TRUE(throws_naming<std::invalid_argument>("ABACUS", [] { select_isa("ABACUS"); }));
    EXPECT_EQ(isa(), name);
  }
  select_isa("");
}

TEST(Isa, SelectedOneRuns) {
  const OvqProblem problem({.tokens = 60, .key_dim = 64, .value_dim = 64, .options = {.chunk = 16, .centroids = 20}});
  std::vector<std::vector<float>> outputs;
  for (const std::string& name : available_isas()) {
    select_isa(name);
    const OvqForward forward = run_forward(problem.inputs());
    outputs.push_back(forward.o.values());
    EXPECT_TRUE(calibrated({.actual = outputs.back(),
                            .plain = expected_forward<float>(problem.inputs(), {}, forward.assignments).o,
                            .truth = expected_forward<double>(problem.inputs(), {}, forward.assignments).o}));
    select_isa("");
  }
  // With fused multiply-add and without, rounding differs somewhere.
  if (outputs.size() > 1) {
    EXPECT_FALSE(same_bits(outputs.front(), outputs.back()));
  }
}

struct ChildOutput {
  int exit_code = -1;
  std::string text;
};

// Runs this program in a child process; for another CPU, with the emulator that runs it here.
ChildOutput run_child(const std::string& environment) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = environment + " " OVQ_EMULATOR " '" + program + "' --print-isa 2>&1";
  ChildOutput output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output.text += buffer;
  const int status = pclose(pipe);
  if (WIFEXITED(status)) output.exit_code = WEXITSTATUS(status);
  return output;
}

TEST(Isa, EnvironmentForcesOne) {
  for (const std::string& name : available_isas()) {
    const ChildOutput child = run_child("OVQ_ISA=" + name);
    EXPECT_EQ(child.exit_code, 0);
    EXPECT_EQ(child.text, name + "\n");
  }
  const ChildOutput automatic = run_child("env -u OVQ_ISA");
  EXPECT_EQ(automatic.text, available_isas().front() + "\n");
}

TEST(Isa, UnknownNameInTheEnvironmentIsAnError) {
  const ChildOutput child = run_child("OVQ_ISA=ABACUS");
  EXPECT_EQ(child.exit_code, 1);
  EXPECT_NE(child.text.find("ABACUS"), std::string::npos) << child.text;
}

}  // namespace
}  // namespace ovq::kernels::test
