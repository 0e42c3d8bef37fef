// Text for SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace ovq::plot {

// With & < > " and ' as entities, and without the control characters that XML has no place for.
std::string escaped(std::string_view text);

}  // namespace ovq::plot
