// A run that trains before the user's eyes; Ctrl-C and SIGTERM end it after the step, saved,
// and so does a stdout that takes no more.
#pragma once

#include "ovq/train/trainer.h"

namespace ovq::cli {

enum class Profiling { off, on };  // on: show at the end where the time went

struct ShowOptions {
  Profiling profiling = Profiling::off;
  train::DataParallel parallel;  // the first of whose processes shows something
};

// Throws Interrupted if it was stopped.
void train_and_show(const train::Run& run, const ShowOptions& options);

}  // namespace ovq::cli
