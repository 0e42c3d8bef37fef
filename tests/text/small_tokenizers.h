// The small tokenizers of tests/text/tokenizers: a model of models.jsonl with the other parts from variants.jsonl.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace ovq::test {

inline std::vector<nlohmann::json> lines_of(const std::string& file) {
  std::ifstream in(std::string(OVQ_SMALL_TOKENIZERS "/") + file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  if (lines.empty()) throw std::runtime_error(file + " has no lines");
  return lines;
}

// A tokenizer.json as a JSON value.
inline nlohmann::json small_tokenizer(const std::string& name) {
  static const std::vector<nlohmann::json> models = lines_of("models.jsonl"), variants = lines_of("variants.jsonl");
  for (const nlohmann::json& variant : variants) {
    if (variant["name"].get<std::string>() != name) continue;
    nlohmann::json file = variant;
    file.erase("name");
    file.erase("base");
    file["version"] = "1.0";
    file["model"]["type"] = "BPE";
    for (const nlohmann::json& model : models) {
      if (model["name"] != variant["base"]) continue;
      file["model"]["vocab"] = model["vocab"];
      file["model"]["merges"] = model["merges"];
    }
    return file;
  }
  throw std::runtime_error("there is no variant " + name);
}

}  // namespace ovq::test
