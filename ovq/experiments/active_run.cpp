#include "ovq/experiments/active_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "ovq/base/error.h"
#include "ovq/base/files/durable.h"
#include "ovq/train/prepare.h"
#include "ovq/train/results.h"

namespace ovq::experiments {
namespace {

// The last whole lines of a text file from the offset `begin` on.
std::vector<std::string> last_lines(const std::filesystem::path& file, std::streamoff begin = 0) {
  constexpr std::streamoff kBytes = 4096;
  std::ifstream in(file, std::ios::ate);
  if (!in) return {};
  const std::streamoff size = in.tellg();
  in.seekg(std::max(begin, size - kBytes));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && !in.eof()) lines.push_back(line);
  }
  return lines;
}

int64_t last_step(const std::filesystem::path& metrics) {
  int64_t step = 0;
  for (const std::string& line : last_lines(metrics)) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) step = std::max(step, object.value("step", int64_t{0}));
  }
  return step;
}

std::streamoff size_of(const std::filesystem::path& file) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(file, missing);
  return missing ? 0 : static_cast<std::streamoff>(size);
}

// Why the child process ended: its last error message. Its output begins at `begin` in the log.
std::string reason(const std::filesystem::path& log, std::streamoff begin, int status) {
  constexpr int kSignals = 128;  // above that, a signal ended it and the last message is not the reason
  if (status > kSignals)
    return fmt::format("ended by signal {} ({}); see {}", status - kSignals, strsignal(status - kSignals),
                       log.string());
  const std::vector<std::string> lines = last_lines(log, begin);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->starts_with("ovq: ")) return line->substr(5);
  }
  return fmt::format("ended with status {}; see {}", status, log.string());
}

std::vector<std::string> evaluation_command(const EvaluationRequest& request, const train::RunOptions& options) {
  std::vector<std::string> command{"--json", "--threads", "1"};
  const auto add = [&](const char* flag, const auto& list) {
    if (list.empty()) return;
    command.insert(command.end(), {flag, fmt::format("{}", fmt::join(list, ","))});
  };
  if (request.identifiers) {
    command.insert(command.end(), {"--task", "text", "--identifiers", "--data", options.task_options.at("test")});
    add("--length", request.lengths);
    add("--windows", std::vector{request.rows});
    add("--centroids", request.centroids);
    return command;
  }
  add("--rows", std::vector{request.rows});
  add("--lengths", request.lengths);
  add("--keep", request.keep);
  add("--centroids", request.centroids);
  return command;
}

}  // namespace

ActiveRun::ActiveRun(PlannedRun planned, RunEnvironment environment, json search)
    : planned_(std::move(planned)),
      environment_(std::move(environment)),
      search_(std::move(search)),
      options_(planned_.options()) {
  begin();
  train();
}

void ActiveRun::begin() {
  const std::filesystem::path& directory = planned_.directory;
  if (std::filesystem::exists(directory / "run.json")) {
    const std::string differing =
        differing_options(with_absolute_paths(train::Run::open(directory).options()), with_absolute_paths(options_));
    if (!differing.empty())
      throw std::runtime_error(directory.string() + " holds a run with other options: " + differing);
    return;
  }
  train::PreparedRun prepared = train::prepare_run(to_json(options_), {});
  std::filesystem::create_directories(directory);
  const json mark = {{"commit", environment_.commit}, {"machine", environment_.machine}};
  files::write_file_durably(marker(), mark.dump(2) + "\n");
  train::Run::create(directory, prepared.options, prepared.task);
}

void ActiveRun::train() {
  log_begin_ = size_of(log());
  started_ = std::chrono::steady_clock::now();
  const std::vector<std::string> command{environment_.program, "train",     "--resume",
                                         planned_.directory,   "--threads", "1"};
  process_ = std::make_unique<ChildProcess>(command, log(), log());
}

std::filesystem::path ActiveRun::output(size_t index) const {
  return planned_.directory / fmt::format("evaluation-{}.json", index);
}

void ActiveRun::evaluate(size_t index) {
  log_begin_ = size_of(log());
  started_ = std::chrono::steady_clock::now();
  evaluation_ = index;
  std::vector<std::string> command{environment_.program, "eval", planned_.directory};
  const std::vector<std::string> asked = evaluation_command(planned_.experiment.evaluations[index], options_);
  command.insert(command.end(), asked.begin(), asked.end());
  process_ = std::make_unique<ChildProcess>(command, output(index), log());
}

void ActiveRun::answer_questions() {
  log_begin_ = size_of(log());
  started_ = std::chrono::steady_clock::now();
  answering_ = true;
  const std::vector<std::string> command{environment_.program, "eval",
                                         planned_.directory,   "--json",
                                         "--threads",          "1",
                                         "--benchmark",        "endings",
                                         "--questions",        planned_.experiment.corpus->questions_file()};
  process_ = std::make_unique<ChildProcess>(command, output(planned_.experiment.evaluations.size()), log());
}

// An evaluation that two requests share is stored once, with groups of targets if either asks for them.
void ActiveRun::read_evaluations(size_t index) {
  std::ifstream in(output(index));
  const json printed = json::parse(in);
  if (planned_.experiment.evaluations[index].identifiers) {
    for (json found : printed.is_array() ? printed : json::array({printed})) {
      for (const char* name : {"bins", "bin", "tokens_per_second", "weight_bytes"}) found.erase(name);
      identifiers_.push_back(std::move(found));
    }
    return;
  }
  for (json evaluation : printed) {
    if (!planned_.experiment.evaluations[index].groups) evaluation.erase("groups");
    const auto known = std::find_if(evaluations_.begin(), evaluations_.end(),
                                    [&](const json& other) { return train::same_question(other, evaluation); });
    if (known == evaluations_.end()) {
      evaluations_.push_back(std::move(evaluation));
    } else if (evaluation.contains("groups") && !known->contains("groups")) {
      *known = std::move(evaluation);
    }
  }
}

bool ActiveRun::advance() {
  const std::optional<int> status = process_->poll();
  if (!status) return false;
  if (*status == kDivergedStatus) throw DivergedError(reason(log(), log_begin_, *status));
  if (*status != 0) throw std::runtime_error(reason(log(), log_begin_, *status));
  if (training_) {
    const int64_t steps = position().step;
    if (steps != options_.steps)
      throw std::runtime_error(fmt::format("stopped after step {} of {}", steps, options_.steps));
    training_ = false;
    evaluate(0);
    return false;
  }
  evaluation_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  if (answering_) {
    std::ifstream in(output(planned_.experiment.evaluations.size()));
    choices_ = json::parse(in);
  } else {
    read_evaluations(evaluation_);
    if (evaluation_ + 1 < planned_.experiment.evaluations.size()) {
      evaluate(evaluation_ + 1);
      return false;
    }
    if (planned_.has_questions()) {
      answer_questions();
      return false;
    }
  }
  finish();
  return true;
}

void ActiveRun::finish() {
  const train::Run run = train::Run::open(planned_.directory);
  ExperimentResult result{.group = planned_.experiment.group,
                          .name = planned_.experiment.name,
                          .shows = planned_.experiment.shows,
                          .claims = planned_.experiment.claims,
                          .options = options_,
                          .requests = planned_.experiment.evaluations,
                          .search = search_,
                          .evaluated_by = environment_.commit,
                          .machine = environment_.machine,
                          .training = train::training_cost(run.metrics()),
                          .evaluation_seconds = evaluation_seconds_,
                          .metric = tasks::metric_name(run.description().metric),
                          .codebooks = codebook_curve(run.metrics()),
                          .evaluations = evaluations_,
                          .identifiers = identifiers_,
                          .choices = choices_};
  if (planned_.experiment.corpus) result.corpus = planned_.experiment.corpus->described();
  if (made_here()) {
    std::ifstream in(marker());
    const json mark = json::parse(in);
    result.commit = mark.at("commit");
    result.machine = mark.at("machine");
  }
  std::filesystem::create_directories(planned_.result.parent_path());
  files::write_file_durably(planned_.result, to_file_text(result));
  if (environment_.keep_runs || !made_here()) return;
  files::remove_durably(planned_.directory);
  std::filesystem::remove(log());
}

ActiveRun::Position ActiveRun::position() const {
  return {.step = training_ ? last_step(planned_.directory / "metrics.jsonl") : options_.steps,
          .steps = options_.steps,
          .evaluations = evaluation_,
          .training = training_};
}

}  // namespace ovq::experiments
