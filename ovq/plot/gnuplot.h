// Figures as scripts for gnuplot, which makes PNG files of them: for places that show no SVG.
#pragma once

#include <filesystem>
#include <string>

#include "ovq/plot/figure.h"

namespace ovq::plot {

std::string to_gnuplot(const Figure& figure, const std::filesystem::path& png);

}  // namespace ovq::plot
