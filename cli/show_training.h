// Trains a run and shows its progress. Ctrl-C, SIGTERM and failed writes to stdout end it after the current step, with
// a checkpoint saved.
#pragma once

#include "ovq/train/trainer.h"

namespace ovq::cli {

enum class Profiling { off, on };  // on: print a time profile at the end

struct ShowOptions {
  Profiling profiling = Profiling::off;
  train::DataParallel parallel;  // only its first process prints
};

// Throws Interrupted if it was stopped.
void train_and_show(const train::Run& run, const ShowOptions& options);

}  // namespace ovq::cli
