#include "ovq/report/live.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/json_lines.h"
#include "ovq/plot/markup.h"
#include "ovq/report/page.h"

namespace ovq::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plot::escaped;

constexpr size_t kMostPoints = 150;       // per line; each is the mean of several steps in longer runs
constexpr size_t kRecentSteps = 50;       // that the speed of a run is estimated from
constexpr double kSecondsOfSilence = 60;  // a run that is silent for longer has stopped

struct LiveRun {
  std::string label;
  double age = 0;  // seconds since it last wrote
  int64_t step = 0, steps = 0;
  double seconds_left = 0;
  json last_evaluation;
  plot::Series loss, accuracy, rate, speed, tested;

  bool done() const { return steps > 0 && step >= steps; }
};

double age_of(const fs::path& file) {
  std::error_code gone;
  const auto written = fs::last_write_time(file, gone);
  return gone ? 0 : std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}

// `value(line)` by step, averaged so that no more than kMostPoints remain.
template <class Value>
plot::Series thinned(const std::string& label, const std::vector<json>& steps, Value&& value) {
  plot::Series series{.label = label};
  const size_t stride = 1 + (std::max<size_t>(1, steps.size()) - 1) / kMostPoints;
  for (size_t begin = 0; begin < steps.size(); begin += stride) {
    double sum = 0, count = 0;
    const size_t end = std::min(steps.size(), begin + stride);
    for (size_t i = begin; i < end; ++i) {
      if (const auto found = value(steps[i])) {
        sum += *found;
        ++count;
      }
    }
    if (count > 0) series.points.push_back({.x = steps[end - 1].value("step", 0.0), .y = sum / count});
  }
  return series;
}

std::optional<double> field_of(const json& line, const char* name) {
  const auto at = line.find(name);
  return at != line.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

// The time of a step. The median ignores times when the machine was busy.
double usual_seconds(const std::vector<json>& steps) {
  const auto recent = static_cast<std::ptrdiff_t>(std::min(steps.size(), kRecentSteps));
  std::vector<double> seconds;
  for (auto line = steps.end() - recent; line != steps.end(); ++line) seconds.push_back(line->value("seconds", 0.0));
  std::nth_element(seconds.begin(), seconds.begin() + recent / 2, seconds.end());
  return seconds[static_cast<size_t>(recent / 2)];
}

LiveRun read_run(const fs::path& directory, const std::string& label) {
  LiveRun run{.label = label, .age = age_of(directory / "metrics.jsonl")};
  std::ifstream in(directory / "run.json");
  const json options = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (options.is_object()) run.steps = options.value("steps", int64_t{0});
  std::vector<json> steps;
  run.tested.label = label;
  for (const json& line : read_json_lines(directory / "metrics.jsonl")) {
    if (line.value("kind", "") == "step") {
      steps.push_back(line);
    } else if (line.value("kind", "") == "evaluation") {
      if (line.contains("keep")) continue;  // of --eval-keep, with another dictionary than in training
      run.last_evaluation = line;
      if (const auto accuracy = field_of(line, "accuracy"))
        run.tested.points.push_back({.x = line.value("step", 0.0), .y = *accuracy});
    }
  }
  if (steps.empty()) return run;
  run.step = steps.back().value("step", int64_t{0});
  run.seconds_left = static_cast<double>(std::max<int64_t>(0, run.steps - run.step)) * usual_seconds(steps);
  const auto of = [](const char* name) { return [name](const json& line) { return field_of(line, name); }; };
  run.loss = thinned(label, steps, of("loss"));
  run.accuracy = thinned(label, steps, of("accuracy"));
  run.rate = thinned(label, steps, of("rate"));
  run.speed = thinned(label, steps, [](const json& line) -> std::optional<double> {
    const auto tokens = field_of(line, "tokens"), taken = field_of(line, "seconds");
    return tokens && taken && *taken > 0 ? std::optional(*tokens / *taken) : std::nullopt;
  });
  return run;
}

std::vector<LiveRun> read_runs(const fs::path& runs, size_t most) {
  std::vector<std::pair<double, fs::path>> found;  // by age
  // A finished run may be removed meanwhile; it is skipped.
  std::error_code gone;
  for (auto at = fs::recursive_directory_iterator(runs, gone); at != fs::recursive_directory_iterator();
       at.increment(gone)) {
    if (at->path().filename() == "checkpoints") at.disable_recursion_pending();
    if (at->path().filename() == "metrics.jsonl") found.emplace_back(age_of(at->path()), at->path().parent_path());
  }
  std::sort(found.begin(), found.end());
  if (found.size() > most) found.resize(most);
  std::vector<LiveRun> all;
  for (const auto& [age, directory] : found) {
    const std::string name = fs::relative(directory, runs).string();
    all.push_back(read_run(directory, name == "." ? fs::absolute(runs).filename().string() : name));
  }
  std::sort(all.begin(), all.end(), [](const LiveRun& a, const LiveRun& b) { return a.label < b.label; });
  return all;
}

std::string state_text(const LiveRun& run) {
  if (run.done()) return "done";
  if (run.age > kSecondsOfSilence) return fmt::format("silent for {}", duration_text(run.age));
  return run.steps > 0 ? fmt::format("{} left", duration_text(run.seconds_left)) : "";
}

std::string runs_table(const std::vector<LiveRun>& runs) {
  std::vector<std::vector<std::string>> rows;
  const auto last = [](const plot::Series& series, plot::Numbers numbers) {
    return series.points.empty() ? std::string() : escaped(plot::value_text(numbers, series.points.back().y));
  };
  for (const LiveRun& run : runs) {
    std::string tested;
    if (const auto accuracy = field_of(run.last_evaluation, "accuracy"))
      tested = fmt::format("{:.3f} at {}", *accuracy, run.last_evaluation.value("length", int64_t{0}));
    rows.push_back({escaped(run.label), fmt::format("{} of {}", run.step, run.steps),
                    last(run.loss, plot::Numbers::plain), last(run.accuracy, plot::Numbers::plain), tested,
                    last(run.speed, plot::Numbers::si), state_text(run)});
  }
  return html_table({"", "Step", "Loss", "Accuracy", "Tested", "Tokens/s", ""}, rows, "cards");
}

std::string live_figure(const std::string& title, const plot::Axis& y, plot::Series LiveRun::*series,
                        const std::vector<LiveRun>& runs) {
  plot::Figure figure{.title = title, .x = {.label = "step", .from = 0}, .y = y};
  for (const LiveRun& run : runs) {
    if (!(run.*series).points.empty()) figure.series.push_back(run.*series);
  }
  if (figure.series.empty()) return "";
  return fmt::format("<figure><h3>{}</h3>{}</figure>\n", escaped(title), plot::to_svg(figure));
}

}  // namespace

std::string live_page(const fs::path& directory, const LiveOptions& options) {
  check_data(fs::is_directory(directory), "report", directory.string(), " is not a directory");
  const std::vector<LiveRun> runs = read_runs(directory, options.most_runs);
  std::string body = fmt::format("<header><h1>Runs in {}</h1></header>\n", escaped(directory.string()));
  if (runs.empty()) {
    body += "<p class=\"soft\">No run has written anything here yet.</p>";
  } else {
    const plot::Axis share{.label = "accuracy", .from = 0, .to = 1};
    body += runs_table(runs) + "<div class=\"figures\">";
    body += live_figure("Loss", {.label = "loss", .spacing = plot::Spacing::log10}, &LiveRun::loss, runs);
    body += live_figure("Accuracy in training", share, &LiveRun::accuracy, runs);
    body += live_figure("Accuracy on test rows", share, &LiveRun::tested, runs);
    body += live_figure("Learning rate", {.label = "rate"}, &LiveRun::rate, runs);
    body += live_figure("Speed", {.label = "tokens/s", .numbers = plot::Numbers::si, .from = 0}, &LiveRun::speed, runs);
    body += "</div>";
  }
  return html_page("ovq: runs in " + directory.string(), body, options.refresh_seconds);
}

}  // namespace ovq::report
