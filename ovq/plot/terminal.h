// Figures as text for a terminal; each line has a character of its own.
#pragma once

#include <string>

#include "ovq/plot/figure.h"

namespace ovq::plot {

struct TerminalSize {
  int columns = 80, rows = 18;  // `columns` of the whole figure, `rows` of the plot without axes and legend
  bool colours = false;         // ANSI escapes
};

std::string to_terminal(const Figure& figure, const TerminalSize& size);

}  // namespace ovq::plot
