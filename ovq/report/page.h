// Pages in a single file: HTML that is also well-formed XML, with its style and script inside.
#pragma once

#include <string>
#include <vector>

#include "ovq/plot/figure.h"

namespace ovq::report {

// `body` is HTML. With `refresh_seconds` the browser loads the file again after that time.
std::string html_page(const std::string& title, const std::string& body, int refresh_seconds = 0);

// Cells are HTML. On narrow screens each row becomes a card with its cells below their column titles.
std::string html_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
                       const std::string& kind = "");

// The numbers of a figure as a collapsible table: a row for each line, a column for each x.
std::string figure_numbers(const plot::Figure& figure);

}  // namespace ovq::report
