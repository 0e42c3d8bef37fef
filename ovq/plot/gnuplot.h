// Figures as gnuplot scripts that produce PNG files, for viewers that cannot show SVG.
#pragma once

#include <filesystem>
#include <string>

#include "ovq/plot/figure.h"

namespace ovq::plot {

std::string to_gnuplot(const Figure& figure, const std::filesystem::path& png);

}  // namespace ovq::plot
