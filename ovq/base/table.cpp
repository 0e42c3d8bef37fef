#include "ovq/base/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "ovq/base/error.h"

namespace ovq {

Table Table::of_named_rows(const std::vector<std::string>& titles) {
  std::vector<Column> columns;
  for (const std::string& title : titles) {
    const bool first = columns.empty();
    columns.push_back(
        {.title = title, .align = first ? Align::left : Align::right, .gap = first ? size_t{0} : size_t{2}});
  }
  return Table(std::move(columns));
}

void Table::add(std::vector<std::string> cells) {
  check(cells.size() == columns_.size(), "table", cells.size(), " cells; there are ", columns_.size(), " columns");
  rows_.push_back(std::move(cells));
}

std::vector<std::string> Table::lines() const {
  std::vector<std::string> lines(rows_.size() + 1);
  for (size_t c = 0; c < columns_.size(); ++c) {
    const Column& column = columns_[c];
    const auto cell = [&](size_t line) -> const std::string& { return line == 0 ? column.title : rows_[line - 1][c]; };
    size_t width = column.width;
    for (size_t line = 0; line < lines.size(); ++line) width = std::max(width, cell(line).size());
    // The last column needs no padding.
    const bool last = c + 1 == columns_.size();
    for (size_t line = 0; line < lines.size(); ++line) {
      lines[line] += std::string(column.gap, ' ');
      if (column.align == Align::right)
        lines[line] += fmt::format("{:>{}}", cell(line), width);
      else
        lines[line] += fmt::format("{:<{}}", cell(line), last ? 0 : width);
    }
  }
  for (std::string& line : lines) line += "\n";
  return lines;
}

std::string Table::text() const {
  std::string text;
  for (const std::string& line : lines()) text += line;
  return text;
}

}  // namespace ovq
