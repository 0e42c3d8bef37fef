// A sample in readable form.
#pragma once

#include <string>

#include "ovq/tasks/task.h"

namespace ovq::tasks {

// The names of a row's tokens, in lines of about `width`. Targets are in brackets where the model must predict them. A
// target that is also the next input appears once: `7 4 ->[9 5]|`; any other appears between the inputs: `4[7]0`.
std::string render(const Task& task, const Batch& batch, int64_t row, size_t width = 100);

}  // namespace ovq::tasks
