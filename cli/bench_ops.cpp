// ovq bench ops [--quick] [--json FILE] [--compare FILE] [--threads N] [--filter SUBSTRING]
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/ops.h"
#include "cli/bench.h"
#include "cli/torch_setup.h"

namespace ovq::cli {

void add_bench_ops(CLI::App& bench) {
  const auto arguments = std::make_shared<BenchArguments>();
  add_bench_command(bench, "ops", "Time the fused torch ops against the same ops composed of torch calls", *arguments)
      ->callback([arguments] {
        set_up_torch(arguments->threads);
        run_bench(*arguments, [&] { return bench::run_ops(arguments->run); });
      });
}

}  // namespace ovq::cli
