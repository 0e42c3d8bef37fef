// A sample as people read it.
#pragma once

#include <string>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

// The names of a row's tokens, in lines of about `width`; what is asked for stands in brackets where it should be said.
// A target that is also the next input is shown once: `7 4 ->[9 5]|`; one that is not comes between the inputs:
// `4[7]0`.
std::string render(const Task& task, const Batch& batch, int64_t row, size_t width = 100);

}  // namespace ovq::tasks
