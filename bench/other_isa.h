// A second opinion on what whole models compute: their kernels on another instruction set.
#pragma once

#include <string>

#include "ovq/core/isa.h"

namespace ovq::bench {

// During its lifetime the kernels run on the machine's plainest instruction set, or on its best if that is in use. The
// plainest has other widths, and leaves matrix products to torch.
class OtherIsa {
 public:
  OtherIsa() : before_(kernels::isa()) {
    const auto all = kernels::available_isas();
    kernels::select_isa(all.back() == before_ ? all.front() : all.back());
  }
  ~OtherIsa() { kernels::select_isa(before_); }
  OtherIsa(const OtherIsa&) = delete;
  OtherIsa& operator=(const OtherIsa&) = delete;

  std::string name() const { return kernels::isa(); }

 private:
  std::string before_;
};

}  // namespace ovq::bench
