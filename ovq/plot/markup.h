// Text for SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace ovq::plot {

// Replaces & < > " and ' by entities and removes control characters that XML does not allow.
std::string escaped(std::string_view text);

}  // namespace ovq::plot
