#include "ovq/ops/ovq_attention/torch_state.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <type_traits>
#include <vector>

#include "ovq/base/files/durable.h"

namespace ovq::ops {
namespace {

using at::Tensor;

// [B, H, n, D]; of weights, which have no D, [B, H, n]
template <class T>
Tensor view_into(const std::shared_ptr<kernels::OvqState>& state, const kernels::View<const T>& view,
                 bool weights = false) {
  const at::ScalarType type = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;
  std::vector<int64_t> sizes = {view.batch, view.heads, view.time, view.dim};
  std::vector<int64_t> strides = {view.batch_stride, view.head_stride, view.time_stride, 1};
  if (weights) {
    sizes.pop_back();
    strides.pop_back();
  }
  if (view.data == nullptr || view.time == 0) return at::empty(sizes, type);
  return at::from_blob(
      const_cast<T*>(view.data), sizes, strides, [state](void*) {}, at::TensorOptions().dtype(type));
}

c10::intrusive_ptr<State> read_all(const char* op, std::istream& in) {
  auto state = std::make_shared<kernels::OvqState>(kernels::OvqState::read(in));
  if (in.peek() != std::istream::traits_type::eof()) {
    throw std::runtime_error(std::string("[") + op + "] bytes follow the end of the state; must be the state alone");
  }
  return c10::make_intrusive<State>(std::move(state), StateTensors{});
}

}  // namespace

std::vector<Tensor> StateTensors::list() const {
  std::vector<Tensor> all = {keys, values, pending_keys, pending_values};
  if (counts.defined()) all.insert(all.end(), {counts, pending_weights});
  if (shrinkage.defined()) all.push_back(shrinkage);
  return all;
}

StateTensors StateTensors::from(at::TensorList list, const kernels::OvqOptions& options) {
  StateTensors tensors{list[0], list[1], list[2], list[3], {}, {}, {}};
  if (options.weighted) {
    tensors.counts = list[4];
    tensors.pending_weights = list[5];
  }
  if (options.value_norms) tensors.shrinkage = list.back();
  return tensors;
}

StateTensors views_of(const std::shared_ptr<kernels::OvqState>& state) {
  const bool narrow = state->dtype() == kernels::StateDtype::bfloat16;
  StateTensors views = {narrow ? view_into(state, state->narrow_keys()) : view_into(state, state->keys()),
                        narrow ? view_into(state, state->narrow_values()) : view_into(state, state->values()),
                        view_into(state, state->pending_keys()),
                        view_into(state, state->pending_values()),
                        {},
                        {},
                        {}};
  if (state->options().value_norms) views.shrinkage = view_into(state, state->shrinkage(), true);
  if (state->options().weighted) {
    views.counts = view_into(state, state->real_counts(), true);
    views.pending_weights = view_into(state, state->pending_weights(), true);
  }
  return views;
}

State::State(std::shared_ptr<kernels::OvqState> kernel, StateTensors tracked)
    : kernel_(std::move(kernel)), tracked_(std::move(tracked)) {}

int64_t State::used_bytes() const {
  const kernels::OvqShape& s = kernel_->shape();
  const int64_t row = s.key_dim + s.value_dim, wide = sizeof(float);
  const int64_t stored = kernel_->dtype() == kernels::StateDtype::bfloat16 ? wide / 2 : wide;
  return s.batch * s.kv_heads * (size() * (row * stored + wide) + kernel_->pending() * row * wide);
}

at::ScalarType State::dtype() const {
  return kernel_->dtype() == kernels::StateDtype::bfloat16 ? at::kBFloat16 : at::kFloat;
}

Tensor State::counts() const {
  if (options().weighted) return tensors().counts;
  const kernels::OvqShape& shape = kernel_->shape();
  const Tensor counts = at::empty({shape.batch, shape.kv_heads, kernel_->size()}, at::kLong);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      const std::span<const int64_t> from = kernel_->counts(b, h);
      std::copy(from.begin(), from.end(), counts.data_ptr<int64_t>() + (b * shape.kv_heads + h) * kernel_->size());
    }
  }
  return counts;
}

kernels::OvqState& State::own_kernel() {
  tracked_ = {};
  if (kernel_.use_count() > 1) kernel_ = std::make_shared<kernels::OvqState>(*kernel_);
  return *kernel_;
}

c10::intrusive_ptr<State> State::clone() const {
  return c10::make_intrusive<State>(std::make_shared<kernels::OvqState>(*kernel_), StateTensors{});
}

c10::intrusive_ptr<State> State::detach() const { return c10::make_intrusive<State>(kernel_, StateTensors{}); }

c10::intrusive_ptr<State> State::to(kernels::StateDtype dtype) const {
  return c10::make_intrusive<State>(std::make_shared<kernels::OvqState>(kernel_->to(dtype)), StateTensors{});
}

void State::save(const std::string& path) const {
  files::write_stream_durably(path, [&](std::ostream& out) { kernel_->write(out); });
}

c10::intrusive_ptr<State> State::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("[State.load] cannot open '" + path + "'");
  return read_all("State.load", in);
}

Tensor State::to_bytes() const {
  std::ostringstream out;
  kernel_->write(out);
  const std::string bytes = std::move(out).str();
  const Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr<uint8_t>(), bytes.data(), bytes.size());
  return tensor;
}

c10::intrusive_ptr<State> State::from_bytes(const Tensor& bytes) {
  TORCH_CHECK_TYPE(bytes.scalar_type() == at::kByte && bytes.is_cpu(), "[State.from_bytes] bytes has dtype ",
                   bytes.scalar_type(), "; must be uint8 on the CPU");
  const Tensor flat = bytes.contiguous();
  std::istringstream in(std::string(reinterpret_cast<const char*>(flat.data_ptr<uint8_t>()), flat.numel()));
  return read_all("State.from_bytes", in);
}

}  // namespace ovq::ops
