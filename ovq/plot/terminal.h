// Figures as text for a terminal: each line is drawn by a character of its own.
#pragma once

#include <string>

#include "ovq/plot/figure.h"

namespace ovq::plot {

struct TerminalSize {
  int columns = 80, rows = 18;  // of the whole picture, and of the plot without axes and legend
  bool colours = false;         // ANSI escapes
};

std::string to_terminal(const Figure& figure, const TerminalSize& size);

}  // namespace ovq::plot
