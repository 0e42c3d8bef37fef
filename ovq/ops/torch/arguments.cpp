#include "ovq/ops/torch/arguments.h"

#include "ovq/base/error.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::ops {

using at::Tensor;

void check_arguments(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  const bool autocast = autocast_on();
  for (const Argument& argument : arguments) {
    const Tensor& x = argument.x;
    if (!x.defined() && (argument.flags & kOptional) != 0) continue;
    TORCH_CHECK_TYPE(x.defined(), "[", op, "] ", argument.name, " is None; must be a tensor");
    TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "[", op, "] ", argument.name, " has dtype ", x.scalar_type(),
                     "; must be a floating one");
    TORCH_CHECK_TYPE((argument.flags & kLikeFirst) == 0 || autocast || x.scalar_type() == first.x.scalar_type(), "[",
                     op, "] ", argument.name, " has dtype ", x.scalar_type(), "; must equal ", first.name, "'s ",
                     first.x.scalar_type());
    check(x.device() == first.x.device(), op, argument.name, " is on ", x.device().str(), "; must be on ", first.name,
          "'s ", first.x.device().str());
  }
}

void check_dims(const char* op, const char* name, const Tensor& x, int64_t dims, const char* expected) {
  check(x.dim() == dims, op, name, " has ", x.dim(), " dimensions; must have ", dims, ": ", expected);
}

}  // namespace ovq::ops
