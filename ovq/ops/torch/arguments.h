// Checks of the tensors that the library's ops are called with: that they are there, their dtypes, devices, dimensions.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>

namespace ovq::ops {

inline constexpr int kLikeFirst = 1;  // of the first one's dtype, but for autocast, which leaves a mix behind
inline constexpr int kOptional = 2;

struct Argument {
  const char* name;
  const at::Tensor& x;
  int flags = 0;
};

// Each throws std::invalid_argument (ValueError) or c10::TypeError naming the argument.
void check_arguments(const char* op, std::initializer_list<Argument> arguments);
void check_dims(const char* op, const char* name, const at::Tensor& x, int64_t dims, const char* expected);

}  // namespace ovq::ops
