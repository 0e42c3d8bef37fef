// The one dispatcher over instruction sets: a table of function pointers for each of them, of which isa() selects one.
// docs/dispatch.md has the recipe.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

namespace ovq::kernels::detail {

inline constexpr size_t kMostTargets = 63;

// The selected instruction set, as an index into available_isas().
size_t selected_target();

// visit(index) for each available instruction set, while it is Highway's choice, which the whole process shares.
void visit_targets(const std::function<void(size_t index)>& visit);

// The tables of one file of kernels: `current` returns the table of Highway's choice.
template <class Table>
class TargetTables {
 public:
  explicit TargetTables(const Table* (*current)()) {
    visit_targets([&](size_t index) { tables_[index] = current(); });
  }
  const Table& selected() const { return *tables_[selected_target()]; }

 private:
  std::array<const Table*, kMostTargets> tables_{};
};

}  // namespace ovq::kernels::detail
