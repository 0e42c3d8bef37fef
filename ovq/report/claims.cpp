#include "ovq/report/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "ovq/base/error.h"

namespace ovq::report {
namespace {

constexpr double kStandardErrors = 2;  // means must differ by this many to be called different
constexpr int kGridPoints = 25;        // of a computed line on a linear axis

// `read(object, context)` for every object of a list.
template <class Read>
void for_each_object(FieldReader& reader, const char* name, const FieldContext& context, Read&& read) {
  const json* list = reader.find(name);
  if (list == nullptr) return;
  if (!list->is_array()) reader.fail(name, *list, "a list");
  for (size_t i = 0; i < list->size(); ++i) {
    FieldContext own = context;
    own.path = fmt::format("{}{}{}[{}]", context.path, context.path.empty() ? "" : ".", name, i);
    read((*list)[i], own);
  }
}

std::string needed_text(FieldReader& reader, const char* name) {
  std::string text;
  reader(name, text, "");
  if (text.empty()) reader.fail(name, text, "a text that is not empty");
  return text;
}

double needed_number(FieldReader& reader, const char* name) {
  const json* field = reader.find(name);
  if (field == nullptr || !field->is_number()) reader.fail(name, field == nullptr ? json() : *field, "a number");
  return field->get<double>();
}

void read_axis(FieldReader& reader, plot::Axis& axis) {
  axis.label = needed_text(reader, "label");
  reader("spacing", axis.spacing, "");
  reader("numbers", axis.numbers, "");
  if (const json* from = reader.find("from"))
    axis.from = from->is_number() ? from->get<double>() : needed_number(reader, "from");
  if (const json* to = reader.find("to")) axis.to = to->is_number() ? to->get<double>() : needed_number(reader, "to");
}

const json& needed_object(FieldReader& reader, const char* name) {
  const json* object = reader.find(name);
  if (object == nullptr || !object->is_object()) reader.fail(name, object == nullptr ? json() : *object, "an object");
  return *object;
}

FieldContext inside(const FieldContext& context, const char* name) {
  FieldContext own = context;
  own.path += std::string(".") + name;
  return own;
}

Chart chart_from_json(const json& object, const FieldContext& context) {
  FieldReader reader(object, context);
  Chart chart{.name = needed_text(reader, "name"), .title = needed_text(reader, "title")};
  reader("paper", chart.paper, "");
  reader("text", chart.text, "");
  reader("make", chart.make, "");

  FieldReader x(needed_object(reader, "x"), inside(context, "x"));
  x("of", chart.x, "");
  x("times", chart.x_times, "", above(0));
  read_axis(x, chart.x_axis);
  x.finish();
  FieldReader y(needed_object(reader, "y"), inside(context, "y"));
  const std::string of = needed_text(y, "of");
  read_axis(y, chart.y_axis);
  y.finish();
  plot::Scale(chart.x_axis, 1, 2);  // throws if the bounds are wrong
  plot::Scale(chart.y_axis, 1, 2);

  for_each_object(reader, "rules", context, [&](const json& own, const FieldContext& at) {
    FieldReader rule(own, at);
    chart.rules.push_back({.x = needed_number(rule, "x"), .label = needed_text(rule, "label")});
    rule.finish();
  });
  for_each_object(reader, "lines", context, [&](const json& own, const FieldContext& at) {
    FieldReader line(own, at);
    const std::string label = needed_text(line, "label");
    const std::vector<Quantity> quantities = read_quantities(line, own, at, of);
    line.finish();
    for (const Quantity& quantity : quantities) {
      const bool several = quantities.size() > 1;
      chart.lines.push_back({several ? label + ", " + dictionary_text(quantity) : label, quantity});
    }
  });
  reader.finish();
  if (chart.lines.empty()) reader.fail("lines", json::array(), "a list of lines");
  const bool computed = std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    return !line.quantity.inspect.empty() || !line.quantity.bound.empty();
  });
  if (computed && !(chart.x_axis.from && chart.x_axis.to))
    reader.fail("x", object["x"], "an axis with from and to, since a line is computed");
  return chart;
}

Check check_from_json(const json& object, const FieldContext& context) {
  FieldReader reader(object, context);
  Check check{.text = needed_text(reader, "text")};
  std::string of;
  reader("of", of, "");
  check.value = quantity_from_json(needed_object(reader, "value"), inside(context, "value"), of);
  if (reader.find("is") == nullptr) reader.fail("is", json(), "how the two must compare, such as \"at least\"");
  reader("is", check.relation, "");
  const json* than = reader.find("than");
  if (than != nullptr && than->is_object())
    check.than = quantity_from_json(*than, inside(context, "than"), of);
  else if (than != nullptr && than->is_number())
    check.number = than->get<double>();
  else
    reader.fail("than", than == nullptr ? json() : *than, "a quantity or a number");
  reader("margin", check.margin, "", at_least(0));
  reader("numbers", check.numbers, "");
  reader.finish();
  return check;
}

// Reads the fields shared by claims and the page's first section.
void read_finding(FieldReader& reader, const FieldContext& context, Claim& claim) {
  claim.title = needed_text(reader, "title");
  reader("note", claim.note, "");
  reader("make", claim.make, "");
  if (const json* charts = reader.find("charts")) {
    const bool good =
        charts->is_array() && std::all_of(charts->begin(), charts->end(), [](const json& x) { return x.is_string(); });
    if (!good) reader.fail("charts", *charts, "a list of names of charts");
    claim.charts = charts->get<std::vector<std::string>>();
  }
  for_each_object(reader, "checks", context,
                  [&](const json& own, const FieldContext& at) { claim.checks.push_back(check_from_json(own, at)); });
}

Claim claim_from_json(const json& object, const FieldContext& context) {
  FieldReader reader(object, context);
  Claim claim;
  reader("number", claim.number, "", at_least(1));
  if (claim.number == 0) reader.fail("number", json(), "the claim's number");
  claim.paper = needed_text(reader, "paper");
  reader("where", claim.where, "");
  claim.make = fmt::format("ovq reproduce --claims {}", claim.number);
  read_finding(reader, context, claim);
  reader.finish();
  return claim;
}

void check_names(const ClaimsFile& file, const std::string& op) {
  std::set<std::string> names;
  for (const Chart& chart : file.charts)
    check(names.insert(chart.name).second, op.c_str(), "chart ", chart.name, " is listed twice; names must differ");
  const auto check_charts = [&](const Claim& claim, const std::string& who) {
    for (const std::string& name : claim.charts) {
      if (!names.contains(name))
        fail(op.c_str(), who, ": ", unknown_name("chart", name, std::vector<std::string>(names.begin(), names.end())));
    }
  };
  if (file.first) check_charts(*file.first, "first");
  std::set<int64_t> numbers;
  for (const Claim& claim : file.claims) {
    check(numbers.insert(claim.number).second, op.c_str(), "claim ", claim.number,
          " is listed twice; numbers must differ");
    check_charts(claim, fmt::format("claim {}", claim.number));
  }
}

// The squared standard error of the mean, as estimated from a few runs.
double squared_error(const experiments::Statistic& found) {
  return found.deviation * found.deviation / static_cast<double>(std::max<int64_t>(1, found.runs));
}

// Whether the difference can be told from chance: there is a margin, or one side has several runs.
bool decidable(const Check& check, const experiments::Statistic& value, const experiments::Statistic& than) {
  if (check.relation == Relation::at_least || check.relation == Relation::at_most || check.margin > 0) return true;
  const bool trained = !check.value.results.empty() || (check.than && !check.than->results.empty());
  return !trained || value.runs > 1 || than.runs > 1;
}

bool holds(const Check& check, const experiments::Statistic& value, const experiments::Statistic& than) {
  const double difference = value.mean - than.mean;
  const double clear = std::max(check.margin, kStandardErrors * std::sqrt(squared_error(value) + squared_error(than)));
  switch (check.relation) {
    case Relation::at_least:
      return difference >= -check.margin;
    case Relation::at_most:
      return difference <= check.margin;
    case Relation::above:
      return difference > clear;
    case Relation::below:
      return difference < -clear;
  }
  return false;
}

// The x values at which computed lines have points.
std::vector<double> grid_of(const Chart& chart) {
  std::vector<double> grid;
  if (!chart.x_axis.from || !chart.x_axis.to) return grid;
  const double from = *chart.x_axis.from, to = *chart.x_axis.to;
  if (chart.x_axis.spacing == plot::Spacing::linear) {
    for (int i = 0; i < kGridPoints; ++i) grid.push_back(from + (to - from) * i / (kGridPoints - 1));
  } else {
    for (double x = from; x <= to; x *= 2) grid.push_back(x);
  }
  return grid;
}

}  // namespace

ClaimsFile read_claims(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) fail_data("claims", "cannot open ", path.string());
  const json object = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) fail_data("claims", path.string(), " is not valid JSON");
  ClaimsFile file;
  try {
    const FieldContext context{.op = path.string()};
    FieldReader reader(object, context);
    for_each_object(reader, "charts", context,
                    [&](const json& own, const FieldContext& at) { file.charts.push_back(chart_from_json(own, at)); });
    if (reader.find("first") != nullptr) {
      const FieldContext own{.op = context.op, .path = "first"};
      FieldReader first(needed_object(reader, "first"), own);
      read_finding(first, own, file.first.emplace());
      first.finish();
    }
    for_each_object(reader, "claims", context,
                    [&](const json& own, const FieldContext& at) { file.claims.push_back(claim_from_json(own, at)); });
    reader.finish();
    check_names(file, path.string());
  } catch (const std::invalid_argument& error) {
    throw DataError(error.what());
  }
  return file;
}

Judgement judge(const Claim& claim, const Evidence& evidence) {
  Judgement judgement;
  bool all = !claim.checks.empty(), one_failed = false;
  for (const Check& check : claim.checks) {
    CheckOutcome outcome{.value = value_of(check.value, evidence)};
    outcome.than = check.than ? value_of(*check.than, evidence) : experiments::Statistic{.mean = check.number};
    if (outcome.value && outcome.than && decidable(check, *outcome.value, *outcome.than))
      outcome.verdict = holds(check, *outcome.value, *outcome.than) ? Verdict::holds : Verdict::fails;
    all = all && outcome.verdict == Verdict::holds;
    one_failed = one_failed || outcome.verdict == Verdict::fails;
    judgement.checks.push_back(outcome);
  }
  judgement.verdict = one_failed ? Verdict::fails : all ? Verdict::holds : Verdict::open;
  return judgement;
}

DrawnChart draw(const Chart& chart, const Evidence& evidence) {
  DrawnChart drawn{.figure = {.title = chart.title, .x = chart.x_axis, .y = chart.y_axis, .rules = chart.rules}};
  const std::vector<double> grid = grid_of(chart);
  for (const ChartLine& line : chart.lines) {
    const Quantity& quantity = line.quantity;
    const bool computed = !quantity.inspect.empty() || !quantity.bound.empty();
    plot::Series series{.label = line.label,
                        .look = quantity.bound.empty() ? plot::Look::measured : plot::Look::reference};
    for (const auto& [x, values] : measure(quantity, chart.x, grid, evidence)) {
      const experiments::Statistic found = experiments::statistic(values);
      series.points.push_back(
          {.x = x * chart.x_times, .y = found.mean, .deviation = found.deviation, .runs = computed ? 0 : found.runs});
    }
    if (series.points.empty())
      drawn.missing.push_back(line.label);
    else
      drawn.figure.series.push_back(std::move(series));
  }
  return drawn;
}

}  // namespace ovq::report
