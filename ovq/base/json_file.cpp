#include "ovq/base/json_file.h"

#include <fstream>
#include <stdexcept>

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

}  // namespace ovq
