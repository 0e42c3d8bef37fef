#include "ovq/tasks/render.h"

#include "ovq/base/error.h"

namespace ovq::tasks {

std::string render(const Task& task, const Batch& batch, int64_t row, size_t width) {
  check(row >= 0 && row < batch.rows, "render", "row is ", row, "; the batch has ", batch.rows);
  const int32_t* tokens = batch.tokens.data() + row * batch.length;
  const int32_t* targets = batch.targets.data() + row * batch.length;
  const std::string gap(task.token_gap());

  std::string text;
  size_t line_start = 0;
  bool inside = false;  // of brackets
  const auto add = [&](const std::string& name, bool target) {
    std::string joint = text.empty() || inside != target ? "" : gap;
    if (target && !inside) joint = "[";
    if (!target && inside) joint = "]";
    inside = target;
    text += joint;
    if (text.size() - line_start + name.size() > width && text.size() > line_start) {
      while (text.size() > line_start && !gap.empty() && text.back() == ' ') text.pop_back();
      text += '\n';
      line_start = text.size();
    }
    text += name;
  };
  for (int64_t i = 0; i < batch.length; ++i) {
    const bool shown = i > 0 && targets[i - 1] == tokens[i];  // equals the previous target
    if (!shown) add(task.token_name(tokens[i]), false);
    if (targets[i] != kNoTarget) add(task.token_name(targets[i]), true);
  }
  if (inside) text += ']';
  return text;
}

}  // namespace ovq::tasks
