// Raw strided views of tensors [batch, time, heads, dim]. The last dimension is contiguous and the others may have any
// stride, so that slices, transposes and expanded tensors are read in place.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ovq::kernels {

template <class T>
struct View {
  T* data = nullptr;  // nullptr: absent, where a view is optional
  int64_t batch = 0, time = 0, heads = 0, dim = 0;
  int64_t batch_stride = 0, time_stride = 0, head_stride = 0;  // in elements

  static View contiguous(T* data, int64_t batch, int64_t time, int64_t heads, int64_t dim) {
    return {data, batch, time, heads, dim, time * heads * dim, heads * dim, dim};
  }

  T* row(int64_t b, int64_t t, int64_t h) const { return data + b * batch_stride + t * time_stride + h * head_stride; }

  operator View<const T>() const requires(!std::is_const_v<T>) {
    return {data, batch, time, heads, dim, batch_stride, time_stride, head_stride};
  }
};

}  // namespace ovq::kernels
