// A quantity as data: a measured or computed value of a model under given conditions.
//
//   {"results": "recall/small/sw-ovq", "of": "accuracy", "centroids": 256}   measured by runs, over their seeds
//   {"results": "text/books/sw-ovq", "of": "choices.accuracy"}   their answers to questions
//   {"inspect": "paper/recall-sw-ovq", "mixer": "ovq", "of": "forward_flops", "centroids": 4096}   from a preset
//   {"bench": "bench-kernels", "case": "ovq forward H6 d128 L128 N2048 T*", "of": "seconds_best"}  * is the length
//   {"bound": "slots", "share": 0.4}     min(1, keep / share)
//
// Each may be divided by another ("over") and multiplied ("times"). For results, `keep` or `centroids` choose the
// dictionary; `length`, `group` and `options` (of the task) choose the test. The field left open is the free variable
// x.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ovq/base/json_fields.h"
#include "ovq/experiments/result_tables.h"
#include "ovq/report/evidence.h"

namespace ovq::report {

// The variable that a quantity is a function of.
enum class Variable { length, keep, centroids, group, step, state_bytes };
constexpr auto enum_names(Variable) {
  using enum Variable;
  return std::to_array<EnumName<Variable>>({{length, "length"},
                                            {keep, "keep"},
                                            {centroids, "centroids"},
                                            {group, "group"},
                                            {step, "step"},
                                            {state_bytes, "state_bytes"}});
}

struct Quantity {
  std::string results, inspect, bench, bound;  // one of them
  std::string of;                              // "accuracy", "state_bytes", ...
  std::string mixer, bench_case;
  std::optional<double> keep, length, group, centroids;
  json options;  // null: any
  double share = 1, times = 1;
  std::shared_ptr<const Quantity> over;
};

// Values by x, one for each run.
using Curve = std::map<double, std::vector<double>>;

// `grid`: the x values for quantities that are computed. Empty if nothing was measured yet. DataError if a run has more
// than one value for an x, so that a further choice is needed.
Curve measure(const Quantity& quantity, Variable x, const std::vector<double>& grid, const Evidence& evidence);

// The value where all variables are chosen, `length` included.
std::optional<experiments::Statistic> value_of(const Quantity& quantity, const Evidence& evidence);

// Reads the quantity's fields from an object that has further fields; `of` is its default. A list in keep or centroids
// gives a quantity for each element.
std::vector<Quantity> read_quantities(FieldReader& reader, const json& object, const FieldContext& context,
                                      const std::string& of);
Quantity quantity_from_json(const json& object, const FieldContext& context, const std::string& of);

// "N 256", "keep 0.2" or ""
std::string dictionary_text(const Quantity& quantity);

}  // namespace ovq::report
