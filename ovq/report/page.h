// Pages of one file: HTML that is well-formed XML too, with its style and a few lines of script, nothing to load.
#pragma once

#include <string>
#include <vector>

#include "ovq/plot/figure.h"

namespace ovq::report {

// `body` is HTML. With `refresh_seconds` the browser loads the file again after that time.
std::string html_page(const std::string& title, const std::string& body, int refresh_seconds = 0);

// Cells are HTML. On narrow screens the rows become cards, on which every cell stands below its column's title.
std::string html_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
                       const std::string& kind = "");

// The numbers behind a figure, to be unfolded: a row for each line, a column for each x.
std::string figure_numbers(const plot::Figure& figure);

}  // namespace ovq::report
