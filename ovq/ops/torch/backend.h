// Which implementation of an op runs.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <string>

#include "ovq/base/fields.h"

namespace ovq::ops {

enum class Backend {
  automatic,  // fused where there are kernels: float32, bfloat16 and half on the CPU
  fused,      // an error where there are none
  composed,   // of ATen calls: any device and floating dtype, differentiable any number of times
};
constexpr auto enum_names(Backend) {
  return std::to_array<EnumName<Backend>>(
      {{Backend::automatic, "auto"}, {Backend::fused, "fused"}, {Backend::composed, "composed"}});
}

// By its name; std::invalid_argument naming `op` lists what there is. Absent: automatic.
Backend backend_from(const char* op, const c10::optional<std::string>& name);

// What `automatic` means in this thread while an object of this class lives, e.g. for ops inside of layers. Without one
// OVQ_FORCE_REFERENCE=1 in the environment means composed.
class BackendScope {
 public:
  explicit BackendScope(Backend backend);
  ~BackendScope();
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

 private:
  Backend before_;
};

// What `automatic` stands for now: itself, or what a scope or the environment says.
Backend resolved(Backend backend);

}  // namespace ovq::ops
