// The paper's claims as data: the text of each, the measurements it rests on, the rule that decides it, and the charts
// that show it. A file such as experiments/report/claims.json:
//
//   {"charts": [{"name": "recall", "title": "Recall against length", "paper": "figure ICR",
//                "x": {"of": "length", "label": "tokens", "spacing": "log2", "numbers": "tokens"},
//                "y": {"of": "accuracy", "label": "accuracy", "from": 0, "to": 1},
//                "rules": [{"x": 512, "label": "longest in training"}],
//                "lines": [{"label": "sw-ovq", "results": "recall/small/sw-ovq", "centroids": [256, 1024]},
//                          {"label": "sw-nope", "results": "recall/small/sw-nope"}],
//                "make": "ovq reproduce recall --only small"}],
//    "claims": [{"number": 1, "title": "...", "paper": "...", "where": "figure ICR", "charts": ["recall"],
//                "checks": [{"text": "...", "of": "accuracy", "value": {...}, "is": "at least", "than": {...},
//                            "margin": 0.02}]}],
//    "first": {"title": "...", "note": "...", "charts": ["recall"], "checks": []}}
//
// Lines and values are quantities (quantity.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ovq/plot/figure.h"
#include "ovq/report/quantity.h"

namespace ovq::report {

struct ChartLine {
  std::string label;
  Quantity quantity;
};

struct Chart {
  std::string name, title, paper, text, make;  // `make`: the command that makes its results
  Variable x = Variable::length;
  double x_times = 1;  // factor from x to the units of the axis
  plot::Axis x_axis, y_axis;
  std::vector<plot::Rule> rules;
  std::vector<ChartLine> lines;
};

// The relation that two means must have.
enum class Relation {
  at_least,  // not below by more than the margin
  at_most,   // not above by more than the margin
  above,     // by more than the margin and two standard errors of the difference
  below,
};
constexpr auto enum_names(Relation) {
  using enum Relation;
  return std::to_array<EnumName<Relation>>(
      {{at_least, "at least"}, {at_most, "at most"}, {above, "above"}, {below, "below"}});
}

struct Check {
  std::string text;
  Quantity value;
  Relation relation = Relation::at_least;
  std::optional<Quantity> than;  // or
  double number = 0;
  double margin = 0;
  plot::Numbers numbers = plot::Numbers::plain;
};

struct Claim {
  int64_t number = 0;
  std::string title, paper, where, note, make;
  std::vector<std::string> charts;
  std::vector<Check> checks;
};

struct ClaimsFile {
  std::vector<Chart> charts;
  std::optional<Claim> first;  // the page's first section; not a claim of the paper, so without a number
  std::vector<Claim> claims;
};

// An error in the file is a DataError that names the file and the field.
ClaimsFile read_claims(const std::filesystem::path& file);

enum class Verdict { holds, fails, open };

struct CheckOutcome {
  std::optional<experiments::Statistic> value, than;  // empty: not measured
  Verdict verdict = Verdict::open;
};

struct Judgement {
  Verdict verdict = Verdict::open;
  std::vector<CheckOutcome> checks;
};

// A claim fails if one check fails and holds if all hold; a claim without checks is open. `above` and `below` without a
// margin are open if neither side has more than one run.
Judgement judge(const Claim& claim, const Evidence& evidence);

// The content of a chart. Lines without measurements are listed in `missing` instead of the series.
struct DrawnChart {
  plot::Figure figure;
  std::vector<std::string> missing;
};
DrawnChart draw(const Chart& chart, const Evidence& evidence);

}  // namespace ovq::report
