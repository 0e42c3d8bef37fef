// A run that trains before the user's eyes; Ctrl-C and SIGTERM end it after the step, saved.
#pragma once

#include "ovq/train/run.h"

namespace ovq::cli {

enum class Profiling { off, on };  // on: show at the end where the time went

void train_and_show(const train::Run& run, Profiling profiling);

}  // namespace ovq::cli
