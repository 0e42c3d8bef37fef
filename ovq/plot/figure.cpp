#include "ovq/plot/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ovq/plot/markup.h"

namespace ovq::plot {
namespace {

// In units of the drawing: about the pixels of a phone at full width, slightly fewer than on a desktop.
constexpr double kWidth = 440, kPlotHeight = 250;
constexpr double kLeft = 68, kRight = 16, kTop = 14, kBottom = 46;
constexpr double kLetter = 6.1;  // mean width at the font's size of 12
constexpr double kLegendLine = 19, kSwatch = 26, kLegendGap = 16;
constexpr size_t kColours = 7, kDashes = 4, kMostMarkers = 24;
constexpr double kMarker = 3.6;

double letters(const std::string& text) {  // characters, not bytes
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string marker(size_t shape, double x, double y) {
  const double r = kMarker;
  switch (shape % kColours) {
    case 0:
      return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}"/>)", x, y, r);
    case 1:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}h{}v{}h-{}z"/>)", x - r, y - r, 2 * r, 2 * r, 2 * r);
    case 2:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l{} {}h-{}z"/>)", x, y - 1.2 * r, 1.2 * r, 2.2 * r, 2.4 * r);
    case 3:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l{} {}l-{} {}l-{} -{}z"/>)", x, y - 1.4 * r, 1.3 * r, 1.4 * r,
                         1.3 * r, 1.4 * r, 1.3 * r, 1.4 * r);
    case 4:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l-{} -{}h{}z"/>)", x, y + 1.2 * r, 1.2 * r, 2.2 * r, 2.4 * r);
    case 5:
      return fmt::format(R"(<path class="open" d="M{:.1f} {:.1f}l{} {}m0 -{}l-{} {}"/>)", x - r, y - r, 2 * r, 2 * r,
                         2 * r, 2 * r, 2 * r);
    default:
      return fmt::format(R"(<path class="open" d="M{:.1f} {:.1f}h{}m-{} -{}v{}"/>)", x - 1.2 * r, y, 2.4 * r, 1.2 * r,
                         1.2 * r, 2.4 * r);
  }
}

std::string classes(size_t index, Look look) {
  if (look == Look::reference) return "reference";
  const size_t dash = index / kColours % kDashes;
  return fmt::format("c{}{}", index % kColours, dash == 0 ? "" : fmt::format(" d{}", dash));
}

Scale scale_over(const Axis& axis, const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!std::isfinite(value) || (axis.spacing != Spacing::linear && value <= 0)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low > high) low = high = 1;
  return Scale(axis, low, high);
}

class Drawing {
 public:
  explicit Drawing(const Figure& figure) : figure_(figure), x_(x_scale(figure)), y_(y_scale(figure)) {}

  std::string svg(const std::string& attributes, const std::string& inside) {
    axes();
    for (const Rule& rule : figure_.rules) draw(rule);
    size_t index = 0;
    for (const Series& series : figure_.series) {
      draw(series, index);
      if (series.look == Look::measured) ++index;
    }
    const double height = legend(kTop + kPlotHeight + kBottom);
    return fmt::format(R"(<svg class="figure" {}viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}{}</svg>)",
                       attributes, kWidth, height, escaped(figure_.title), inside, text_);
  }

 private:
  double left(double x) const { return kLeft + x_.at(x) * (kWidth - kLeft - kRight); }
  double top(double y) const { return kTop + (1 - std::clamp(y_.at(y), 0.0, 1.0)) * kPlotHeight; }

  void axes() {
    const double right = kWidth - kRight, bottom = kTop + kPlotHeight;
    for (const Tick& tick : y_.ticks()) {
      const double y = top(tick.value);
      text_ += fmt::format(R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="end" x="{}" y="{:.1f}">{}</text>)",
                           kLeft, y, right, kLeft - 7, y + 4, escaped(tick.text));
    }
    for (const Tick& tick : x_.ticks()) {
      const double x = left(tick.value);
      text_ += fmt::format(R"(<path class="axis" d="M{:.1f} {}v5"/><text class="middle" x="{:.1f}" y="{}">{}</text>)",
                           x, bottom, x, bottom + 18, escaped(tick.text));
    }
    text_ += fmt::format(R"(<path class="axis" d="M{} {}V{}H{}"/>)", kLeft, kTop, bottom, right);
    text_ += fmt::format(R"(<text class="middle label" x="{}" y="{}">{}</text>)", (kLeft + right) / 2, bottom + 37,
                         escaped(figure_.x.label));
    text_ += fmt::format(R"-(<text class="middle label" transform="translate(13 {}) rotate(-90)">{}</text>)-",
                         kTop + kPlotHeight / 2, escaped(figure_.y.label));
  }

  void draw(const Rule& rule) {
    if (!x_.contains(rule.x)) return;
    const double x = left(rule.x);
    const bool leans_left = x > kWidth / 2;
    text_ += fmt::format(R"(<path class="rule" d="M{:.1f} {}v{}"/><text class="note {}" x="{:.1f}" y="{}">{}</text>)",
                         x, kTop, kPlotHeight, leans_left ? "end" : "start", x + (leans_left ? -5 : 5),
                         kTop + kPlotHeight - 7, escaped(rule.label));
  }

  bool drawn(const Point& point) const {
    return std::isfinite(point.x) && std::isfinite(point.y) && x_.contains(point.x) && y_.contains(point.y);
  }

  void draw(const Series& series, size_t index) {
    std::vector<Point> points;
    std::copy_if(series.points.begin(), series.points.end(), std::back_inserter(points),
                 [&](const Point& point) { return drawn(point); });
    if (points.empty()) return;
    text_ += fmt::format(R"(<g class="{}">)", classes(index, series.look));
    band(points);
    std::string path;
    for (const Point& point : points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", left(point.x), top(point.y));
    text_ += fmt::format(R"(<path class="line" d="{}"/>)", path);
    if (series.look == Look::measured) markers(series, points, index);
    text_ += "</g>";
  }

  void band(const std::vector<Point>& points) {
    if (std::all_of(points.begin(), points.end(), [](const Point& point) { return point.deviation == 0; })) return;
    if (points.size() == 1) {  // a vertical bar
      const Point& point = points.front();
      text_ += fmt::format(R"(<path class="line" d="M{:.1f} {:.1f}V{:.1f}"/>)", left(point.x), edge(point, -1),
                           edge(point, 1));
      return;
    }
    std::string path;
    for (auto at = points.begin(); at != points.end(); ++at)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", left(at->x), edge(*at, 1));
    for (auto at = points.rbegin(); at != points.rend(); ++at)
      path += fmt::format("L{:.1f} {:.1f}", left(at->x), edge(*at, -1));
    text_ += fmt::format(R"(<path class="band" d="{}z"/>)", path);
  }
  // On a logarithmic axis the band may reach below the smallest value it can show.
  double edge(const Point& point, double sign) const {
    const double y = point.y + sign * point.deviation;
    return y_.contains(y) ? top(y) : kTop + (sign > 0 ? 0 : kPlotHeight);
  }

  void markers(const Series& series, const std::vector<Point>& points, size_t index) {
    const size_t stride = 1 + (points.size() - 1) / kMostMarkers;
    for (size_t i = (points.size() - 1) % stride; i < points.size(); i += stride) {
      const Point& point = points[i];
      text_ += fmt::format(
          R"(<g class="point"><title>{}: {} at {}</title><circle class="hit" cx="{:.1f}" cy="{:.1f}" r="9"/>{}</g>)",
          escaped(series.label), escaped(point_text(figure_.y, point)), escaped(value_text(figure_.x.numbers, point.x)),
          left(point.x), top(point.y), marker(index, left(point.x), top(point.y)));
    }
  }

  // Arranges entries from left to right, then in further lines; returns the lower edge.
  double legend(double y) {
    double x = kLeft / 2;
    size_t index = 0;
    y += kLegendLine / 2;
    for (const Series& series : figure_.series) {
      const double width = kSwatch + kLetter * letters(series.label) + kLegendGap;
      if (x + width > kWidth && x > kLeft / 2) {
        x = kLeft / 2;
        y += kLegendLine;
      }
      text_ += fmt::format(R"(<g class="{}"><path class="line" d="M{:.1f} {:.1f}h{}"/>)", classes(index, series.look),
                           x, y - 4, kSwatch - 6);
      if (series.look == Look::measured) text_ += marker(index++, x + (kSwatch - 6) / 2, y - 4);
      text_ += fmt::format(R"(</g><text class="start" x="{:.1f}" y="{:.1f}">{}</text>)", x + kSwatch, y,
                           escaped(series.label));
      x += width;
    }
    return y + kLegendLine / 2;
  }

  const Figure& figure_;
  Scale x_, y_;
  std::string text_;
};

}  // namespace

Scale x_scale(const Figure& figure) {
  std::vector<double> values;
  for (const Series& series : figure.series) {
    for (const Point& point : series.points) values.push_back(point.x);
  }
  return scale_over(figure.x, values);
}

Scale y_scale(const Figure& figure) {
  std::vector<double> values;
  for (const Series& series : figure.series) {
    for (const Point& point : series.points)
      values.insert(values.end(), {point.y - point.deviation, point.y, point.y + point.deviation});
  }
  return scale_over(figure.y, values);
}

std::string point_text(const Axis& y, const Point& point) {
  if (point.runs < 2) return value_text(y.numbers, point.y);
  return fmt::format("{} ({} runs)", with_deviation(y.numbers, point.y, point.deviation), point.runs);
}

std::string to_svg(const Figure& figure) { return Drawing(figure).svg("", ""); }

std::string to_svg_file(const Figure& figure) {
  return Drawing(figure).svg(
             fmt::format(R"(xmlns="http://www.w3.org/2000/svg" width="{}" )", kWidth * 1.5),
             "<style>" + figure_style() + "</style>" + R"(<rect class="paper" width="100%" height="100%"/>)") +
         "\n";
}

std::string figure_style() {
  return R"(
.figure{--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0578d;--c4:#b8860b;--c5:#3a9bdc;--c6:#555;--ink:#222;--soft:#666;--grid:#e2e2e2;--paper:#fff;
font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.figure{--c0:#4aa8e8;--c1:#ff8c42;--c2:#2fcf9f;--c3:#e79ac6;--c4:#f0c948;--c5:#a3dcff;--c6:#c8c8c8;--ink:#e8e8e8;--soft:#aaa;--grid:#3a3d42;--paper:#181a1d}}
.figure circle,.figure path{fill:currentColor}
.figure text{fill:var(--ink)}
.figure .label{font-weight:600}
.figure .note{fill:var(--soft);font-size:11px}
.figure .end{text-anchor:end}
.figure .middle{text-anchor:middle}
.figure .grid{stroke:var(--grid);fill:none}
.figure .axis{stroke:var(--soft);fill:none}
.figure .rule{stroke:var(--soft);fill:none;stroke-dasharray:2 4}
.figure .paper{fill:var(--paper)}
.figure .line{stroke:currentColor;fill:none;stroke-width:1.8;stroke-linejoin:round}
.figure .band{fill:currentColor;stroke:none;opacity:.17}
.figure .hit{fill:transparent}
.figure .open{fill:none;stroke:currentColor;stroke-width:2}
.figure .c0{color:var(--c0)}.figure .c1{color:var(--c1)}.figure .c2{color:var(--c2)}.figure .c3{color:var(--c3)}
.figure .c4{color:var(--c4)}.figure .c5{color:var(--c5)}.figure .c6{color:var(--c6)}
.figure .d1 .line{stroke-dasharray:7 4}.figure .d2 .line{stroke-dasharray:2 3}.figure .d3 .line{stroke-dasharray:9 3 2 3}
.figure .reference{color:var(--soft)}.figure .reference .line{stroke-width:1.2;stroke-dasharray:4 3}
)";
}

}  // namespace ovq::plot
