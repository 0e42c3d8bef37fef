#include "ovq/report/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ovq/base/error.h"
#include "ovq/models/config.h"
#include "ovq/models/inspect.h"
#include "ovq/models/presets.h"

namespace ovq::report {
namespace {

using experiments::ExperimentResult;

constexpr const char* kOverall = "model";  // of inspect: all layers together
constexpr std::string_view kChoices = "choices.";

std::optional<double> number(const json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

bool chosen(const std::optional<double>& wanted, const std::optional<double>& found) {
  return !wanted || (found && *found == *wanted);
}

// Whether an evaluation used the chosen dictionary, or any if the dictionary varies. A dictionary chosen by its share
// has another size at every length, so it only matches quantities by share.
bool has_dictionary(const Quantity& quantity, Variable x, const json& evaluation) {
  const bool by_share = evaluation.contains("asked_keep");
  if (quantity.keep || x == Variable::keep)
    return by_share && chosen(quantity.keep, evaluation["asked_keep"].get<double>());
  return !by_share && chosen(quantity.centroids, number(evaluation, "centroids"));
}

std::optional<double> x_of(Variable x, const json& evaluation) {
  switch (x) {
    case Variable::keep:
      return number(evaluation, "asked_keep");
    case Variable::centroids:
      return number(evaluation, "centroids");
    case Variable::state_bytes:
      return number(evaluation, "state_bytes");
    default:
      return number(evaluation, "length");
  }
}

class RunValues {
 public:
  RunValues(const Quantity& quantity, Variable x) : quantity_(quantity), x_(x) {}

  void add(const ExperimentResult& run) {
    own_.clear();
    if (quantity_.of.starts_with(kChoices)) {
      if (const auto value = number(run.choices, quantity_.of.c_str() + kChoices.size())) own_[0] = *value;
    } else if (x_ == Variable::step) {
      for (const json& line : run.codebooks) put(line.at("step"), line);
    } else {
      for (const json& evaluation : run.evaluations) add(evaluation);
    }
    for (const auto& [x, value] : own_) curve_[x].push_back(value);
  }
  const Curve& curve() const { return curve_; }

 private:
  void add(const json& evaluation) {
    if (!has_dictionary(quantity_, x_, evaluation) || !chosen(quantity_.length, number(evaluation, "length"))) return;
    if (!quantity_.options.is_null() && evaluation.value("options", json::object()) != quantity_.options) return;
    if (x_ != Variable::group && !quantity_.group) {
      if (const auto x = x_of(x_, evaluation)) put(*x, evaluation);
      return;
    }
    for (const json& group : evaluation.value("groups", json::array())) {
      const auto index = number(group, "group");
      if (!index || !chosen(quantity_.group, index)) continue;
      put(x_ == Variable::group ? *index : x_of(x_, evaluation).value_or(0), group);
    }
  }
  void put(double x, const json& found) {
    const auto value = number(found, quantity_.of.c_str());
    if (!value) return;
    check_data(own_.emplace(x, *value).second, "claims", quantity_.results, " has several values of ", quantity_.of,
               " at ", name_of(x_), " ", x, "; choose one by keep, centroids, length, group or options");
  }

  const Quantity& quantity_;
  Variable x_;
  std::map<double, double> own_;  // of the current run
  Curve curve_;
};

Curve measured(const Quantity& quantity, Variable x, const Evidence& evidence) {
  const auto found = evidence.experiments.find(quantity.results);
  if (found == evidence.experiments.end()) return {};
  RunValues values(quantity, x);
  for (const ExperimentResult& run : found->second) values.add(run);
  return values.curve();
}

Curve inspected(const Quantity& quantity, const std::vector<double>& grid) {
  models::ModelConfig config = models::model_preset(quantity.inspect).config;
  if (quantity.centroids) config.set_centroids(static_cast<int64_t>(*quantity.centroids));
  std::vector<int64_t> lengths(grid.begin(), grid.end());
  const json contexts = to_json(models::inspect(config, lengths)).at("contexts");
  Curve curve;
  for (const json& context : contexts) {
    const json& part = quantity.mixer == kOverall ? context : context.at("mixers").value(quantity.mixer, json());
    check_data(part.is_object(), "claims", quantity.inspect, " has no mixer ", quantity.mixer);
    const auto value = number(part, quantity.of.c_str());
    check_data(value.has_value(), "claims", "nothing is known of ", quantity.of, " of ", quantity.mixer);
    curve[context.at("context")].push_back(*value);
  }
  return curve;
}

// The number that stands for the pattern's *; empty if the name does not match.
std::optional<double> starred(const std::string& pattern, const std::string& name) {
  const size_t star = pattern.find('*');
  const std::string head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return {};
  const std::string middle = name.substr(head.size(), name.size() - head.size() - tail.size());
  double value = 0;
  const auto [end, error] = std::from_chars(middle.data(), middle.data() + middle.size(), value);
  return error == std::errc() && end == middle.data() + middle.size() ? std::optional(value) : std::nullopt;
}

// "fused.peak_bytes" is the field peak_bytes of the object fused.
std::optional<double> number_at(const json& object, const std::string& path) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return number(object, path.c_str());
  const auto at = object.find(path.substr(0, dot));
  return at == object.end() ? std::nullopt : number_at(*at, path.substr(dot + 1));
}

Curve benched(const Quantity& quantity, const Evidence& evidence) {
  Curve curve;
  const auto found = evidence.benches.find(quantity.bench);
  if (found == evidence.benches.end()) return curve;
  for (const json& one : found->second.at("cases")) {
    const auto x = starred(quantity.bench_case, one.value("name", ""));
    const auto value = number_at(one, quantity.of);
    if (x && value) curve[*x] = {*value};
  }
  return curve;
}

Curve bounded(const Quantity& quantity, const std::vector<double>& grid) {
  Curve curve;
  for (const double keep : grid) curve[keep] = {std::min(1.0, keep / quantity.share)};
  return curve;
}

Curve undivided(const Quantity& quantity, Variable x, const std::vector<double>& grid, const Evidence& evidence) {
  if (!quantity.results.empty()) return measured(quantity, x, evidence);
  if (!quantity.inspect.empty()) return inspected(quantity, grid);
  if (!quantity.bench.empty()) return benched(quantity, evidence);
  return bounded(quantity, grid);
}

void check_quantity(const Quantity& quantity, const FieldReader& reader) {
  const auto given = [](const std::string& text) { return text.empty() ? 0 : 1; };
  if (given(quantity.results) + given(quantity.inspect) + given(quantity.bench) + given(quantity.bound) != 1)
    reader.fail("results", quantity.results, "given, or exactly one of inspect, bench and bound instead");
  if (!quantity.inspect.empty()) {
    const auto presets = models::preset_names();
    if (std::find(presets.begin(), presets.end(), quantity.inspect) == presets.end())
      reader.fail("inspect", quantity.inspect, "the name of a preset");
  }
  if (!quantity.bench.empty() && std::count(quantity.bench_case.begin(), quantity.bench_case.end(), '*') != 1)
    reader.fail("case", quantity.bench_case, "the name of a case with one * in place of the length");
  if (!quantity.bound.empty() && quantity.bound != "slots") reader.fail("bound", quantity.bound, "\"slots\"");
  if (quantity.keep && quantity.centroids) reader.fail("centroids", *quantity.centroids, "absent where keep is given");
}

// Reads a number or a list of numbers.
std::vector<double> numbers_of(FieldReader& reader, const char* name) {
  const json* field = reader.find(name);
  if (field == nullptr) return {};
  const json list = field->is_array() ? *field : json::array({*field});
  const bool good =
      !list.empty() && std::all_of(list.begin(), list.end(), [](const json& x) { return x.is_number() && x > 0; });
  if (!good) reader.fail(name, *field, "a number above 0 or a list of them");
  return list.get<std::vector<double>>();
}

void read_optional(FieldReader& reader, const char* name, std::optional<double>& value) {
  const json* field = reader.find(name);
  if (field == nullptr) return;
  if (!field->is_number()) reader.fail(name, *field, "a number");
  value = field->get<double>();
}

}  // namespace

Curve measure(const Quantity& quantity, Variable x, const std::vector<double>& grid, const Evidence& evidence) {
  Curve curve = undivided(quantity, x, grid, evidence);
  Curve below;
  if (quantity.over) below = measure(*quantity.over, x, grid, evidence);
  for (auto at = curve.begin(); at != curve.end();) {
    double divisor = 1;
    if (quantity.over) {
      const auto under = below.find(at->first);
      divisor = under == below.end() ? 0 : experiments::statistic(under->second).mean;
    }
    if (divisor == 0) {  // not measured at this x
      at = curve.erase(at);
      continue;
    }
    for (double& value : at->second) value *= quantity.times / divisor;
    ++at;
  }
  return curve;
}

std::optional<experiments::Statistic> value_of(const Quantity& quantity, const Evidence& evidence) {
  std::vector<double> grid;
  if (quantity.length) grid.push_back(*quantity.length);
  const bool of_training = quantity.of == "similarity" || quantity.of == "unused";
  Curve curve = measure(quantity, of_training ? Variable::step : Variable::length, grid, evidence);
  if (curve.empty()) return std::nullopt;
  if (!quantity.bench.empty() && quantity.length) {
    const auto at = curve.find(*quantity.length);
    if (at == curve.end()) return std::nullopt;
    return experiments::statistic(at->second);
  }
  check_data(of_training || curve.size() == 1, "claims", quantity.results, quantity.bench,
             ": values at several lengths; choose one by length");
  return experiments::statistic(curve.rbegin()->second);  // in training: the last step
}

std::vector<Quantity> read_quantities(FieldReader& reader, const json& object, const FieldContext& context,
                                      const std::string& of) {
  Quantity quantity{.of = of};
  reader("results", quantity.results, "");
  reader("inspect", quantity.inspect, "");
  reader("bench", quantity.bench, "");
  reader("bound", quantity.bound, "");
  reader("of", quantity.of, "");
  reader("mixer", quantity.mixer, "");
  reader("case", quantity.bench_case, "");
  reader("share", quantity.share, "", above_up_to(0, 1));
  reader("times", quantity.times, "");
  read_optional(reader, "length", quantity.length);
  read_optional(reader, "group", quantity.group);
  if (const json* options = reader.find("options")) {
    if (!options->is_object()) reader.fail("options", *options, "an object");
    quantity.options = *options;
  }
  if (const json* over = reader.find("over")) {
    FieldContext below = context;
    below.path += ".over";
    quantity.over = std::make_shared<Quantity>(quantity_from_json(*over, below, quantity.of));
  }
  const std::vector<double> keeps = numbers_of(reader, "keep"), sizes = numbers_of(reader, "centroids");
  if (!keeps.empty() && !sizes.empty()) reader.fail("centroids", object["centroids"], "absent where keep is given");
  if (quantity.of.empty()) reader.fail("of", json(), "the name of a measured value, such as \"accuracy\"");
  check_quantity(quantity, reader);
  std::vector<Quantity> all;
  for (const double keep : keeps) all.emplace_back(quantity).keep = keep;
  for (const double size : sizes) all.emplace_back(quantity).centroids = size;
  if (all.empty()) all.push_back(quantity);
  return all;
}

Quantity quantity_from_json(const json& object, const FieldContext& context, const std::string& of) {
  FieldReader reader(object, context);
  const std::vector<Quantity> all = read_quantities(reader, object, context, of);
  reader.finish();
  if (all.size() > 1) reader.fail("", object, "one quantity: keep and centroids one number each");
  return all.front();
}

std::string dictionary_text(const Quantity& quantity) {
  if (quantity.keep) return fmt::format("keep {}", *quantity.keep);
  return quantity.centroids ? fmt::format("N {}", *quantity.centroids) : "";
}

}  // namespace ovq::report
