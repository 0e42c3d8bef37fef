#include "ovq/ops/torch/backend.h"

#include <cstdlib>
#include <string_view>

namespace ovq::ops {
namespace {

thread_local Backend scoped = Backend::automatic;

bool reference_forced() {
  const char* value = std::getenv("OVQ_FORCE_REFERENCE");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

}  // namespace

Backend backend_from(const char* op, const c10::optional<std::string>& name) {
  if (!name) return Backend::automatic;
  const auto found = enum_named<Backend>(*name);
  check(found.has_value(), op, "backend is '", *name, "'; must be ", allowed_names(Backend{}));
  return *found;
}

BackendScope::BackendScope(Backend backend) : before_(scoped) { scoped = backend; }
BackendScope::~BackendScope() { scoped = before_; }

Backend resolved(Backend backend) {
  if (backend != Backend::automatic) return backend;
  if (scoped != Backend::automatic) return scoped;
  return reference_forced() ? Backend::composed : Backend::automatic;
}

}  // namespace ovq::ops
