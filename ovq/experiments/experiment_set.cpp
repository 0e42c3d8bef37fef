#include "ovq/experiments/experiment_set.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "ovq/base/error.h"
#include "ovq/base/json_fields.h"
#include "ovq/train/keep.h"

namespace ovq::experiments {
namespace {

bool is_positive(double value) { return value > 0; }
bool is_share(double value) { return value > 0 && value <= 1; }
bool is_natural(double value) { return value >= 0; }

// Reads a list of numbers if it is there.
template <class T>
void read_list(FieldReader& reader, const char* name, std::vector<T>& values, bool (*allowed)(double),
               const char* expected) {
  const json* list = reader.find(name);
  if (list == nullptr) return;
  const auto good = [&](const json& value) {
    return (std::is_floating_point_v<T> ? value.is_number() : value.is_number_integer()) &&
           allowed(value.get<double>());
  };
  if (!list->is_array() || list->empty() || !std::all_of(list->begin(), list->end(), good))
    reader.fail(name, *list, std::string("a list of ") + expected);
  values = list->get<std::vector<T>>();
}

const json* find_array(FieldReader& reader, const char* name, const char* expected) {
  const json* list = reader.find(name);
  if (list != nullptr && (!list->is_array() || list->empty())) reader.fail(name, *list, expected);
  return list;
}

// Reads a name, which must be valid for files and directories.
std::string read_name(FieldReader& reader) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  std::string name;
  reader("name", name, "");
  if (name.empty() || name.front() == '.' || name.find_first_not_of(kLetters) != std::string::npos)
    reader.fail("name", name, "a name of letters, digits, '.', '-' and '_'");
  return name;
}

EvaluationRequest request_from_json(const json& object, const FieldContext& context) {
  FieldReader reader(object, context);
  EvaluationRequest request;
  read_list(reader, "lengths", request.lengths, is_positive, "integers of at least 1");
  read_list(reader, "keep", request.keep, is_share, "numbers above 0 and at most 1");
  read_list(reader, "centroids", request.centroids, is_positive, "integers of at least 1");
  reader("rows", request.rows, "", at_least(1));
  reader("groups", request.groups, "");
  reader("identifiers", request.identifiers, "");
  reader.finish();
  if (request.identifiers && (request.lengths.size() != 1 || !request.keep.empty() || request.groups))
    reader.fail("identifiers", request.identifiers, "used with a single length and without keep and groups");
  if (!request.keep.empty() && !request.centroids.empty())
    reader.fail("centroids", request.centroids, "absent where keep is given; use two evaluations");
  return request;
}

// Reads the fields that groups and experiments share.
void read_common(FieldReader& reader, const std::string& op, const std::string& path, Experiment& experiment) {
  reader("shows", experiment.shows, "");
  read_list(reader, "claims", experiment.claims, is_positive, "numbers of claims");
  read_list(reader, "seeds", experiment.seeds, is_natural, "integers of at least 0");
  if (const json* options = reader.find("options")) {
    if (!options->is_object()) reader.fail("options", *options, "an object");
    experiment.options.merge_patch(*options);
  }
  if (const json* list = find_array(reader, "evaluations", "a list of evaluations"))
    experiment.evaluations = requests_from_json(*list, op, path + ".evaluations");
}

RateSearch search_from_json(const json& object, const FieldContext& context) {
  FieldReader reader(object, context);
  RateSearch search;
  read_list(reader, "learning_rates", search.learning_rates, is_positive, "positive numbers");
  read_list(reader, "seeds", search.seeds, is_natural, "integers of at least 0");
  if (const json* options = reader.find("options")) {
    if (!options->is_object()) reader.fail("options", *options, "an object");
    search.options = *options;
  }
  reader("extend", search.extend, "", at_least(0));
  if (const json* list = find_array(reader, "evaluations", "a list of evaluations"))
    search.evaluations = requests_from_json(*list, context.op, context.path + ".evaluations");
  reader.finish();
  if (search.learning_rates.empty()) reader.fail("learning_rates", json(), "a list of positive numbers");
  if (search.seeds.empty()) reader.fail("seeds", json(), "a list of integers of at least 0");
  return search;
}

// A model without dictionaries is evaluated once at every length.
void drop_dictionary_sizes(std::vector<EvaluationRequest>& requests) {
  std::vector<EvaluationRequest> distinct;
  for (EvaluationRequest request : requests) {
    request.keep.clear();
    request.centroids.clear();
    if (std::find(distinct.begin(), distinct.end(), request) == distinct.end()) distinct.push_back(request);
  }
  requests = distinct;
}

// Checks everything that is known before a run begins.
void check_experiment(Experiment& experiment) {
  check(!experiment.seeds.empty(), "experiment", "seeds are missing; must be a list of integers of at least 0");
  check(!experiment.evaluations.empty(), "experiment", "evaluations are missing; must be a list of evaluations");
  for (const char* name : {"seed", "init_from", "target"}) {
    check(!experiment.options.contains(name), "experiment", "options.", name,
          " is given; leave it out: an experiment trains from its own seeds, for all its steps");
  }
  const train::RunOptions options = experiment.run_options(experiment.seeds.front());
  check(!experiment.corpus || options.task == "text", "experiment", "task is ", options.task,
        "; must be text in a set with a corpus");
  const auto identifiers = [](const EvaluationRequest& request) { return request.identifiers; };
  check(experiment.corpus || std::none_of(experiment.evaluations.begin(), experiment.evaluations.end(), identifiers),
        "experiment", "evaluations.identifiers is true; must be false in a set without a corpus");
  if (train::dictionary_of(experiment.model_config(options)) == nullptr) {
    drop_dictionary_sizes(experiment.evaluations);
    if (experiment.search) drop_dictionary_sizes(experiment.search->evaluations);
  }
  if (!experiment.search) return;
  experiment.search_options(experiment.search->seeds.front(), experiment.search->learning_rates.front());
  for (const char* name : {"seed", "learning_rate"}) {
    check(!experiment.search->options.contains(name), "experiment", "search.options.", name, " is given; use search.",
          name, "s");
  }
  check(!experiment.options.contains("learning_rate"), "experiment",
        "options.learning_rate is given; leave it out, the group's search finds it");
  for (const uint64_t seed : experiment.search->seeds) {
    check(std::find(experiment.seeds.begin(), experiment.seeds.end(), seed) == experiment.seeds.end(), "experiment",
          "seed ", seed, " is used both for the search and for reported runs; use different seeds");
  }
}

std::vector<Experiment> group_from_json(const json& object, const std::string& op, const std::string& path,
                                        const std::optional<Corpus>& corpus) {
  FieldReader reader(object, FieldContext{.op = op, .path = path});
  Experiment common{.group = read_name(reader), .corpus = corpus};
  read_common(reader, op, path, common);
  if (const json* search = reader.find("search"))
    common.search = search_from_json(*search, {.op = op, .path = path + ".search"});
  const json* list = find_array(reader, "experiments", "a list of experiments");
  reader.finish();
  if (list == nullptr) reader.fail("experiments", json(), "a list of experiments");
  std::vector<Experiment> experiments;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string own_path = path + ".experiments[" + std::to_string(i) + "]";
    FieldReader own((*list)[i], FieldContext{.op = op, .path = own_path});
    Experiment& experiment = experiments.emplace_back(common);
    experiment.name = read_name(own);
    read_common(own, op, own_path, experiment);
    own.finish();
    if (corpus) experiment.options["task_options"].update(corpus->task_options());
    try {
      check_experiment(experiment);
    } catch (const std::exception& error) {
      fail_data(op.c_str(), experiment.id(), ": ", error.what());
    }
  }
  return experiments;
}

json parse_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) fail_data("experiments", "cannot open ", file.string());
  json object = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) fail_data("experiments", file.string(), " is not valid JSON");
  return object;
}

}  // namespace

std::vector<EvaluationRequest> requests_from_json(const json& list, const std::string& op, const std::string& path) {
  std::vector<EvaluationRequest> requests;
  for (size_t i = 0; i < list.size(); ++i)
    requests.push_back(request_from_json(list[i], {.op = op, .path = path + "[" + std::to_string(i) + "]"}));
  return requests;
}

json to_json(const std::vector<EvaluationRequest>& requests) {
  json list = json::array();
  for (const EvaluationRequest& request : requests) {
    json& object = list.emplace_back(json{{"rows", request.rows}});
    if (!request.lengths.empty()) object["lengths"] = request.lengths;
    if (!request.keep.empty()) object["keep"] = request.keep;
    if (!request.centroids.empty()) object["centroids"] = request.centroids;
    if (request.groups) object["groups"] = true;
    if (request.identifiers) object["identifiers"] = true;
  }
  return list;
}

train::RunOptions Experiment::run_options(uint64_t seed, std::optional<double> learning_rate) const {
  json all = options;
  all["seed"] = seed;
  if (learning_rate) all["learning_rate"] = *learning_rate;
  return train::resolved(train::run_options_from_json(all));
}

train::RunOptions Experiment::search_options(uint64_t seed, double learning_rate) const {
  Experiment shorter = *this;
  shorter.options.merge_patch(search->options);
  return shorter.run_options(seed, learning_rate);
}

std::unique_ptr<tasks::Task> Experiment::task_for_sizes(const train::RunOptions& options) const {
  train::RunOptions known = options;
  if (corpus) known.task_options["tokenizer"] = "bytes";
  return train::make_task(known);
}

models::ModelConfig Experiment::model_config(const train::RunOptions& options) const {
  return train::model_config(options, corpus ? corpus->tokenizer.vocab : task_for_sizes(options)->vocab());
}

ExperimentSet read_experiment_set(const std::filesystem::path& file) {
  const json object = parse_file(file);
  const std::string op = file.string();
  ExperimentSet set{.name = file.stem().string()};
  try {
    FieldReader reader(object, FieldContext{.op = op, .path = ""});
    const json* groups = find_array(reader, "groups", "a list of groups");
    if (const json* corpus = reader.find("corpus"))
      set.corpus = corpus_from_json(*corpus, {.op = op, .path = "corpus"}, set.name);
    reader.finish();
    if (groups == nullptr) reader.fail("groups", json(), "a list of groups");
    std::set<std::string> ids;
    for (size_t i = 0; i < groups->size(); ++i) {
      for (Experiment& experiment :
           group_from_json((*groups)[i], op, "groups[" + std::to_string(i) + "]", set.corpus)) {
        check(ids.insert(experiment.id()).second, op.c_str(), experiment.id(), " is listed twice");
        set.experiments.push_back(std::move(experiment));
      }
    }
  } catch (const std::invalid_argument& error) {
    throw DataError(error.what());
  }
  return set;
}

}  // namespace ovq::experiments
