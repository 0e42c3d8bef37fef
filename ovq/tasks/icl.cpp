#include "ovq/tasks/icl.h"

#include <numeric>

#include "ovq/base/error.h"
#include "ovq/base/random.h"

namespace ovq::tasks {

namespace {

struct Function {
  int32_t arrow = 0;
  int64_t a = 0, b = 0;
  std::vector<int64_t> source;  // y[i] = b + a * x[source[i]]
  int64_t examples = 0;         // so far
};

std::vector<int64_t> permutation(Random& random, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(std::span(order));
  return order;
}

std::vector<Function> draw_functions(Random& random, const IclOptions& options) {
  const std::vector<int64_t> arrows = permutation(random, options.function_tokens);
  std::vector<Function> functions(static_cast<size_t>(options.functions));
  for (size_t i = 0; i < functions.size(); ++i) {
    functions[i].arrow = static_cast<int32_t>(IclTask::kFirstFunction + arrows[i]);
    functions[i].a = options.a_min + random.below(options.a_max - options.a_min + 1);
    functions[i].b = options.b_min + random.below(options.b_max - options.b_min + 1);
    functions[i].source = permutation(random, options.tokens);
  }
  return functions;
}

}  // namespace

IclTask::IclTask(const IclOptions& options) : options_(options) {
  const auto& o = options_;
  check(o.tokens >= 1, "icl", "tokens is ", o.tokens, "; must be at least 1");
  check(o.functions >= 1 && o.functions <= o.function_tokens, "icl", "functions is ", o.functions,
        "; must be within 1 and function_tokens, ", o.function_tokens);
  check(o.a_min >= 1 && o.a_max >= o.a_min, "icl", "a is within ", o.a_min, " and ", o.a_max,
        "; must be 1 <= min <= max");
  check(o.b_min >= 0 && o.b_max >= o.b_min, "icl", "b is within ", o.b_min, " and ", o.b_max,
        "; must be 0 <= min <= max");
  check(o.vocab <= INT32_MAX, "icl", "vocab is ", o.vocab, "; must be at most ", INT32_MAX);
  const int64_t largest = o.vocab - first_content() - 1;  // integer
  check(largest >= o.b_max && (largest - o.b_max) / o.a_max >= 1, "icl", "vocab is ", o.vocab, "; ", first_content(),
        " special tokens and y up to ", o.b_max, " + ", o.a_max, " x need at least ",
        first_content() + 1 + o.b_max + o.a_max);
  const int64_t x_limit = (largest - o.b_max) / o.a_max;
  check(o.x_max >= 0 && o.x_max <= x_limit, "icl", "x_max is ", o.x_max, "; must be within 0 and ", x_limit);
  if (o.x_max == 0) options_.x_max = x_limit;
}

std::string IclTask::token_name(int32_t token) const {
  if (token == kPadding) return ".";
  if (token == kSeparator) return "|";
  if (token < first_content()) return "->f" + std::to_string(token - kFirstFunction);
  return std::to_string(token - first_content());
}

void IclTask::fill(const SampleRequest& request, int64_t row, Row out) const {
  Random random(row_seed(request, row));
  std::vector<Function> functions = draw_functions(random, options_);
  const int64_t examples = request.length / example_length();
  int64_t position = request.length - examples * example_length();  // after the padding
  const auto put = [&](int64_t token) { out.tokens[static_cast<size_t>(position++)] = static_cast<int32_t>(token); };

  std::vector<int64_t> x(static_cast<size_t>(options_.tokens));
  for (int64_t example = 0; example < examples; ++example) {
    Function& function = functions[static_cast<size_t>(random.below(options_.functions))];
    for (int64_t& value : x) put(first_content() + (value = 1 + random.below(options_.x_max)));
    put(function.arrow);
    for (int64_t source : function.source) {
      const int64_t y = function.b + function.a * x[static_cast<size_t>(source)];
      out.ask(position - 1, static_cast<int32_t>(first_content() + y), function.examples);
      put(first_content() + y);
    }
    put(kSeparator);
    ++function.examples;
  }
}

}  // namespace ovq::tasks
