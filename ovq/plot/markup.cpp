#include "ovq/plot/markup.h"

namespace ovq::plot {

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default: {
        const auto code = static_cast<unsigned char>(letter);
        if (code >= 0x20 || letter == '\n' || letter == '\t') result += letter;
      }
    }
  }
  return result;
}

}  // namespace ovq::plot
