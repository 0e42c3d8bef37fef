#include "ovq/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "ovq/base/files/durable.h"
#include "ovq/base/format.h"
#include "ovq/experiments/child_process.h"
#include "ovq/plot/gnuplot.h"
#include "ovq/plot/markup.h"
#include "ovq/report/page.h"

namespace ovq::report {
namespace {

using plot::escaped;

constexpr const char* kTitle = "Online vector-quantized attention: the paper's claims, measured";

const char* class_of(Verdict verdict) {
  return verdict == Verdict::holds ? "holds" : verdict == Verdict::fails ? "fails" : "undecided";
}
const char* sign_of(Verdict verdict) { return verdict == Verdict::holds ? "✓" : verdict == Verdict::fails ? "✗" : "–"; }

std::string verdict_text(Verdict verdict, const char* undecided = "not measured") {
  const char* text = verdict == Verdict::holds ? "holds" : verdict == Verdict::fails ? "does not hold" : undecided;
  return fmt::format(R"(<span class="verdict {}">{} {}</span>)", class_of(verdict), sign_of(verdict), text);
}

std::string verdict_text(const Judgement& judgement) {
  const bool some = std::any_of(judgement.checks.begin(), judgement.checks.end(),
                                [](const CheckOutcome& outcome) { return outcome.verdict != Verdict::open; });
  return verdict_text(judgement.verdict, some ? "measured in part" : "not measured");
}

std::string statistic_text(const experiments::Statistic& found, plot::Numbers numbers) {
  return found.runs < 2 ? plot::value_text(numbers, found.mean)
                        : plot::with_deviation(numbers, found.mean, found.deviation);
}

// "0.998 ± 0.001, at least 1.000 ± 0.000 − 0.02"; empty if nothing was measured
std::string comparison_text(const Check& check, const CheckOutcome& outcome) {
  if (!outcome.value && (!outcome.than || !check.than)) return "";
  const auto text = [&](const auto& found) {
    return found ? statistic_text(*found, check.numbers) : std::string("not measured");
  };
  std::string line = fmt::format("{}, {} {}", text(outcome.value), name_of(check.relation), text(outcome.than));
  if (check.margin > 0) {
    const bool less = check.relation == Relation::at_least || check.relation == Relation::below;
    line += fmt::format(" {} {}", less ? "−" : "+", plot::value_text(check.numbers, check.margin));
  }
  return line;
}

int64_t seeds_of(const Judgement& judgement) {
  int64_t runs = 0;
  for (const CheckOutcome& outcome : judgement.checks) {
    if (outcome.value) runs = runs == 0 ? outcome.value->runs : std::min(runs, outcome.value->runs);
  }
  return runs;
}

class Writer {
 public:
  Writer(const ClaimsFile& claims, const Evidence& evidence) : claims_(claims), evidence_(evidence) {
    for (const Claim& claim : claims.claims) judgements_.push_back(judge(claim, evidence));
  }

  Report write() {
    std::string body = header() + first() + scoreboard();
    for (size_t i = 0; i < claims_.claims.size(); ++i) body += section(claims_.claims[i], judgements_[i]);
    body += other_charts() + origin();
    report_.html = html_page(kTitle, body);
    report_.summary.runs = evidence_.runs();
    return std::move(report_);
  }

 private:
  std::string header() {
    ReportSummary& summary = report_.summary;
    summary.claims = judgements_.size();
    for (const Judgement& judgement : judgements_) {
      summary.hold += judgement.verdict == Verdict::holds ? 1 : 0;
      summary.fail += judgement.verdict == Verdict::fails ? 1 : 0;
    }
    return fmt::format(
        "<header><h1>{}</h1>\n<p>{} claims: <strong>{} hold</strong>, {} do not, {} are not measured yet; {} runs. "
        "Models and contexts are scaled down to what two cores can train, as described in "
        "<code>docs/reproduction.md</code>. "
        "Numbers are means ± standard deviations over seeds.</p></header>\n",
        escaped(kTitle), summary.claims, summary.hold, summary.fail, summary.claims - summary.hold - summary.fail,
        evidence_.runs());
  }

  std::string first() {
    if (!claims_.first) return "";
    return fmt::format("<section id=\"first\"><h2>{}</h2>\n", escaped(claims_.first->title)) +
           findings(*claims_.first, judge(*claims_.first, evidence_)) + "</section>\n";
  }

  std::string scoreboard() const {
    std::vector<std::vector<std::string>> rows;
    for (size_t i = 0; i < claims_.claims.size(); ++i) {
      const Claim& claim = claims_.claims[i];
      rows.push_back(
          {fmt::format(R"(<a href="#claim-{}">{}. {}</a>)", claim.number, claim.number, escaped(claim.title)),
           escaped(claim.paper), here(claim, judgements_[i]), verdict_text(judgements_[i])});
    }
    return "<section id=\"scoreboard\">" + html_table({"", "The paper", "Here", ""}, rows, "cards score") +
           "</section>\n";
  }

  // The numbers of a claim in a few lines, for the scoreboard.
  static std::string here(const Claim& claim, const Judgement& judgement) {
    std::string text;
    for (size_t i = 0; i < claim.checks.size(); ++i) {
      const Check& check = claim.checks[i];
      const CheckOutcome& outcome = judgement.checks[i];
      if (!outcome.value || !outcome.than) continue;
      std::string numbers = statistic_text(*outcome.value, check.numbers);
      if (check.than) numbers += " against " + statistic_text(*outcome.than, check.numbers);
      text += fmt::format(R"(<div class="check"><span class="{}">{}</span> {}: {}</div>)", class_of(outcome.verdict),
                          sign_of(outcome.verdict), escaped(check.text), escaped(numbers));
    }
    if (text.empty()) return R"(<span class="soft">no results yet</span>)";
    const int64_t seeds = seeds_of(judgement);
    return text + (seeds > 1 ? fmt::format(R"(<div class="soft">{} seeds</div>)", seeds) : "");
  }

  std::string section(const Claim& claim, const Judgement& judgement) {
    return fmt::format("<section id=\"claim-{}\"><h2>{}. {}</h2>\n<p>{}</p>\n<p><strong>The paper{}:</strong> {}</p>\n",
                       claim.number, claim.number, escaped(claim.title), verdict_text(judgement),
                       claim.where.empty() ? "" : " (" + escaped(claim.where) + ")", escaped(claim.paper)) +
           findings(claim, judgement) + "</section>\n";
  }

  std::string findings(const Claim& claim, const Judgement& judgement) {
    std::string text;
    if (!claim.note.empty()) text += fmt::format("<p>{}</p>\n", escaped(claim.note));
    if (!claim.checks.empty()) {
      std::vector<std::vector<std::string>> rows;
      for (size_t i = 0; i < claim.checks.size(); ++i) {
        rows.push_back(
            {escaped(claim.checks[i].text), escaped(comparison_text(claim.checks[i], judgement.checks[i])),
             verdict_text(judgement.checks[i].verdict,
                          judgement.checks[i].value && judgement.checks[i].than ? "one seed" : "not measured")});
      }
      text += html_table({"Asked", "Measured", ""}, rows, "cards");
    }
    if (judgement.verdict == Verdict::open) text += missing(claim);
    return text + figures(claim);
  }

  static std::string missing(const Claim& claim) {
    if (claim.make.empty()) return "<p class=\"soft\">There is no experiment for it yet.</p>\n";
    return fmt::format("<p class=\"soft\">Results are missing; <code>{}</code> makes them.</p>\n", escaped(claim.make));
  }

  std::string figures(const Claim& claim) {
    std::string text, before;
    for (const std::string& name : claim.charts) {
      const auto chart = std::find_if(claims_.charts.begin(), claims_.charts.end(),
                                      [&](const Chart& other) { return other.name == name; });
      if (shown_.insert(name).second)
        text += figure(*chart);
      else
        before += fmt::format(R"({}<a href="#chart-{}">{}</a>)", before.empty() ? "" : ", ", escaped(name),
                              escaped(chart->title));
    }
    if (!before.empty()) before = "<p>Shown above: " + before + ".</p>\n";
    return (text.empty() ? "" : "<div class=\"figures\">" + text + "</div>\n") + before;
  }

  std::string figure(const Chart& chart) {
    const DrawnChart drawn = draw(chart, evidence_);
    ++report_.summary.charts;
    std::string text = fmt::format("<figure id=\"chart-{}\"><h3>{}</h3>", escaped(chart.name), escaped(chart.title));
    if (!drawn.figure.series.empty()) {
      ++report_.summary.charts_with_lines;
      report_.figures[chart.name] = drawn.figure;
      text += plot::to_svg(drawn.figure);
    }
    text += "<figcaption>";
    if (!chart.text.empty()) text += "<p>" + escaped(chart.text) + "</p>";
    if (!chart.paper.empty()) text += "<p class=\"soft\">In the paper: " + escaped(chart.paper) + ".</p>";
    if (!drawn.missing.empty()) {
      const bool all = drawn.figure.series.empty();
      text += "<p class=\"soft\">" + (all ? "No results yet" : "Not measured yet: " + escaped(joined(drawn.missing)));
      text += chart.make.empty() ? ".</p>" : fmt::format("; <code>{}</code></p>", escaped(chart.make));
    }
    text += "</figcaption>";
    if (!drawn.figure.series.empty()) text += figure_numbers(drawn.figure);
    return text + "</figure>\n";
  }

  std::string other_charts() {
    std::string text;
    for (const Chart& chart : claims_.charts) {
      if (shown_.insert(chart.name).second) text += figure(chart);
    }
    if (text.empty()) return text;
    return "<section id=\"more\"><h2>What the paper does not show</h2><div class=\"figures\">" + text +
           "</div></section>\n";
  }

  // The commits and machines that the numbers come from.
  std::string origin() const {
    std::set<std::string> commits, machines;
    double seconds = 0;
    for (const auto& [id, results] : evidence_.experiments) {
      for (const auto& result : results) {
        seconds += result.training.seconds + result.evaluation_seconds;
        commits.insert(result.commit.empty() ? result.evaluated_by : result.commit);
        machines.insert(result.machine.value("cpu", "an unknown CPU"));
      }
    }
    if (evidence_.runs() == 0) return "";
    return fmt::format("<footer class=\"soft\"><p>{} runs, {} of one core in all, on {}; commits {}.</p></footer>\n",
                       evidence_.runs(), duration_text(seconds), escaped(joined({machines.begin(), machines.end()})),
                       escaped(joined({commits.begin(), commits.end()})));
  }

  const ClaimsFile& claims_;
  const Evidence& evidence_;
  std::vector<Judgement> judgements_;
  std::set<std::string> shown_;
  Report report_;
};

void draw_png(const plot::Figure& figure, const std::filesystem::path& png) {
  std::filesystem::path script = png, log = png;
  script.replace_extension(".gnuplot");
  log.replace_extension(".log");
  files::write_file_durably(script, plot::to_gnuplot(figure, png));
  experiments::ChildProcess gnuplot({"/usr/bin/env", "gnuplot", script.string()}, log, log);
  std::optional<int> status;
  while (!(status = gnuplot.poll())) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (*status == 127) throw std::runtime_error("cannot run gnuplot; install it (Debian: gnuplot-nox)");
  if (*status != 0) throw std::runtime_error("gnuplot failed on " + script.string() + "; see " + log.string());
  std::filesystem::remove(script);
  std::filesystem::remove(log);
}

}  // namespace

Report make_report(const ClaimsFile& claims, const Evidence& evidence) { return Writer(claims, evidence).write(); }

ReportSummary write_report(const ReportPaths& paths, const std::function<void(const std::string&)>& warn) {
  const Report report = make_report(read_claims(paths.claims), read_evidence(paths.results, warn));
  std::filesystem::create_directories(paths.out / "figures");
  for (const auto& [name, figure] : report.figures)
    files::write_file_durably(paths.out / "figures" / (name + ".svg"), plot::to_svg_file(figure));
  files::write_file_durably(paths.out / "index.html", report.html);
  if (paths.png.empty()) return report.summary;
  std::filesystem::create_directories(paths.png);
  for (const auto& [name, figure] : report.figures) draw_png(figure, paths.png / (name + ".png"));
  return report.summary;
}

}  // namespace ovq::report
