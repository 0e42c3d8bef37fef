// A quantity as data: what was measured or can be computed, of which model and under which conditions.
//
//   {"results": "recall/small/sw-ovq", "of": "accuracy", "centroids": 256}   what runs found, over their seeds
//   {"results": "text/books/sw-ovq", "of": "choices.accuracy"}   what they answered to questions
//   {"inspect": "paper/recall-sw-ovq", "mixer": "ovq", "of": "forward_flops", "centroids": 4096}   from a preset
//   {"bench": "bench-kernels", "case": "ovq forward H6 d128 L128 N2048 T*", "of": "seconds_best"}  * is the length
//   {"bound": "slots", "share": 0.4}     min(1, keep / share)
//
// Each may be divided by another ("over") and multiplied ("times"). Of results, `keep` or `centroids` choose the
// dictionary, `length`, `group` and `options` (of the task) the test. What is not chosen is the free variable x.
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

// What a quantity is a function of.
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

// `grid`: where to compute what is not measured. Empty if nothing was measured yet. DataError if there is more than one
// value for one x of a run: something was left open.
Curve measure(const Quantity& quantity, Variable x, const std::vector<double>& grid, const Evidence& evidence);

// The value where everything is chosen, `length` among it.
std::optional<experiments::Statistic> value_of(const Quantity& quantity, const Evidence& evidence);

// Fields of an object beside others that the caller reads; `of` is what it says nothing else of. A field that may be a
// list (keep, centroids) gives a quantity for each of its values.
std::vector<Quantity> read_quantities(FieldReader& reader, const json& object, const FieldPlace& place,
                                      const std::string& of);
Quantity quantity_from_json(const json& object, const FieldPlace& place, const std::string& of);

// "N 256", "keep 0.2", or nothing
std::string dictionary_text(const Quantity& quantity);

}  // namespace ovq::report
