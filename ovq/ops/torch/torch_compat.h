// The differences between the versions of torch this project builds with, 1.13 to 2.14: the only place that knows them.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace ovq::ops {

// Autocast is asked about by device since 2.4.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline bool autocast_on_cpu() { return at::autocast::is_autocast_enabled(at::kCPU); }
inline bool autocast_on_gpu() { return at::autocast::is_autocast_enabled(at::kCUDA); }
#else
inline bool autocast_on_cpu() { return at::autocast::is_cpu_enabled(); }
inline bool autocast_on_gpu() { return at::autocast::is_enabled(); }
#endif
inline bool autocast_on() { return autocast_on_cpu() || autocast_on_gpu(); }

// A node of the graph: since 2.14 an intrusive_ptr, before a shared_ptr.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <class T, class... Args>
NodePointer make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return {new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); }};
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

template <class T>
struct TotalOf;
template <class Total>
struct TotalOf<void (c10::MemoryReportingInfoBase::*)(void*, int64_t, Total, Total, c10::Device)> {
  using type = Total;
};
// What an allocator reports as its totals: size_t since 2.0, before int64_t.
using MemoryTotal = TotalOf<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::type;

// TCPStore asks for libuv by default since 2.4, also in builds that lack it.
template <class TcpStoreOptions>
void leave_out_libuv(TcpStoreOptions& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

}  // namespace ovq::ops
