#include "ovq/base/json_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <stdexcept>
#include <vector>

namespace ovq {

nlohmann::json read_json_file(const std::filesystem::path& file) {
  if (std::filesystem::is_directory(file))
    throw std::runtime_error(file.string() + " is a directory; expected a JSON file");
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot open " + file.string());
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(file.string() + " is not valid JSON: " + error.what());
  }
}

std::string to_lines(const nlohmann::ordered_json& object, std::string_view list) {
  std::vector<std::string> fields;
  for (const auto& [name, value] : object.items()) {
    std::string text = value.dump();
    if (name == list) {
      std::vector<std::string> elements;
      for (const auto& element : value) elements.push_back("  " + element.dump());
      text = fmt::format("[\n{}\n ]", fmt::join(elements, ",\n"));
    }
    fields.push_back(fmt::format(" {}: {}", nlohmann::json(name).dump(), text));
  }
  return fmt::format("{{\n{}\n}}\n", fmt::join(fields, ",\n"));
}

}  // namespace ovq
