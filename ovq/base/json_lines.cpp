#include "ovq/base/json_lines.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

namespace ovq {

using nlohmann::json;

std::vector<JsonLine> json_lines(std::string_view text) {
  std::vector<JsonLine> lines;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) object = json(json::value_t::discarded);
    lines.push_back({number, std::move(object)});
  }
  return lines;
}

std::vector<json> read_json_lines(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  std::vector<json> objects;
  for (JsonLine& line : json_lines(text.view())) {
    if (!line.object.is_discarded()) objects.push_back(std::move(line.object));
  }
  return objects;
}

void append_json_line(const std::filesystem::path& file, const json& object) {
  std::ofstream out(file, std::ios::app);
  out << object.dump() << "\n" << std::flush;
  if (!out) throw std::system_error(errno, std::generic_category(), "cannot write " + file.string());
}

}  // namespace ovq
