// Text tables with every column as wide as its widest cell.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace ovq {

enum class Align { left, right };

struct Column {
  std::string title;
  size_t width = 0;  // minimum
  Align align = Align::right;
  size_t gap = 1;  // blanks before it
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // Names on the left, their values on the right, two blanks between the columns.
  static Table of_named_rows(const std::vector<std::string>& titles);

  void add(std::vector<std::string> cells);  // one for each column

  std::vector<std::string> lines() const;  // the titles, then the rows; each ends with a line break
  std::string text() const;                // all lines together

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ovq
