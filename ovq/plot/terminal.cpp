#include "ovq/plot/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace ovq::plot {
namespace {

constexpr const char* kMarks[] = {"●", "■", "▲", "◆", "▼", "x", "+"};
constexpr int kAnsiColours[] = {34, 31, 32, 35, 33, 36, 37};
constexpr int kFewestColumns = 20, kFewestRows = 4;

struct Cell {
  std::string text = " ";
  int series = -1;  // determines the colour; -1: the terminal's default
};

class Canvas {
 public:
  Canvas(const Figure& figure, const TerminalSize& size)
      : figure_(figure), colours_(size.colours), x_(x_scale(figure)), y_(y_scale(figure)) {
    for (const Tick& tick : y_.ticks()) margin_ = std::max(margin_, tick.text.size());
    width_ = std::max(kFewestColumns, size.columns - static_cast<int>(margin_) - 3);
    height_ = std::max(kFewestRows, size.rows);
    cells_.assign(static_cast<size_t>(width_ * height_), {});
  }

  std::string text() {
    for (const Rule& rule : figure_.rules) draw(rule);
    for (size_t i = 0; i < figure_.series.size(); ++i) draw(figure_.series[i], i);
    std::string text = figure_.y.label + "\n";
    for (int row = 0; row < height_; ++row) text += line(row);
    return text + x_axis() + legend();
  }

 private:
  int column(double x) const { return static_cast<int>(std::lround(x_.at(x) * (width_ - 1))); }
  int row(double y) const { return static_cast<int>(std::lround((1 - y_.at(y)) * (height_ - 1))); }
  Cell& cell(int row, int column) { return cells_[static_cast<size_t>(row * width_ + column)]; }

  void draw(const Rule& rule) {
    if (!x_.contains(rule.x)) return;
    for (int row = 0; row < height_; ++row) cell(row, column(rule.x)).text = "┊";
  }

  bool drawn(const Point& point) const {
    return std::isfinite(point.x) && std::isfinite(point.y) && x_.contains(point.x) && y_.contains(point.y);
  }

  // Draws a mark at every point and dots in the columns between points.
  void draw(const Series& series, size_t index) {
    std::vector<std::pair<int, int>> points;
    for (const Point& point : series.points) {
      if (drawn(point)) points.emplace_back(column(point.x), row(point.y));
    }
    const int colour = static_cast<int>(index);
    for (size_t i = 1; i < points.size(); ++i) {
      const auto [x0, y0] = points[i - 1];
      const auto [x1, y1] = points[i];
      for (int x = x0 + 1; x < x1; ++x) {
        const int y = y0 + static_cast<int>(std::lround(static_cast<double>((y1 - y0) * (x - x0)) / (x1 - x0)));
        if (Cell& there = cell(y, x); there.series < 0) there = {"·", colour};
      }
    }
    for (const auto& [x, y] : points) cell(y, x) = {kMarks[index % std::size(kMarks)], colour};
  }

  std::string coloured(const Cell& cell) const {
    if (!colours_ || cell.series < 0) return cell.text;
    return fmt::format("\033[{}m{}\033[0m", kAnsiColours[static_cast<size_t>(cell.series) % std::size(kAnsiColours)],
                       cell.text);
  }

  std::string line(int row) {
    std::string label;
    for (const Tick& tick : y_.ticks()) {
      if (this->row(tick.value) == row) label = tick.text;
    }
    std::string text = fmt::format("{:>{}} {}", label, margin_, label.empty() ? "│" : "┤");
    for (int column = 0; column < width_; ++column) text += coloured(cell(row, column));
    return trimmed(text) + "\n";
  }

  // Ticks that would overlap the previous one have no label.
  std::string x_axis() const {
    std::string marks, labels(margin_ + 2, ' ');
    int next = 0;
    std::vector<std::string> line(static_cast<size_t>(width_), "─");
    for (const Tick& tick : x_.ticks()) {
      const int at = column(tick.value), length = static_cast<int>(tick.text.size());
      const int begin = std::clamp(at - length / 2, 0, std::max(0, width_ - length));
      line[static_cast<size_t>(at)] = "┴";
      if (begin < next) continue;
      labels += std::string(static_cast<size_t>(begin) + margin_ + 2 - labels.size(), ' ') + tick.text;
      next = begin + length + 1;
    }
    for (const std::string& mark : line) marks += mark;
    return std::string(margin_ + 1, ' ') + "└" + marks + "\n" + labels + "\n" + std::string(margin_ + 2, ' ') +
           figure_.x.label + "\n";
  }

  std::string legend() const {
    std::string text;
    for (size_t i = 0; i < figure_.series.size(); ++i) {
      text += fmt::format("  {} {}\n", coloured({kMarks[i % std::size(kMarks)], static_cast<int>(i)}),
                          figure_.series[i].label);
    }
    for (const Rule& rule : figure_.rules) text += fmt::format("  ┊ {}\n", rule.label);
    return text;
  }

  static std::string trimmed(std::string text) {
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

  const Figure& figure_;
  bool colours_;
  Scale x_, y_;
  size_t margin_ = 0;  // width of the y labels
  int width_ = 0, height_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace

std::string to_terminal(const Figure& figure, const TerminalSize& size) { return Canvas(figure, size).text(); }

}  // namespace ovq::plot
