#include "ovq/base/field_table.h"

#include <nlohmann/json.hpp>

#include "ovq/base/table.h"

namespace ovq {
namespace {

using nlohmann::json;

std::string plain(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string allowed_text(const json& field) {
  if (field.contains("values")) {
    std::string text;
    for (const json& value : field["values"]) text += (text.empty() ? "" : ", ") + plain(value);
    return text;
  }
  if (field["type"] == "bool") return "true, false";
  const std::string range = field.value("range", "");
  return field["type"] == "integer" || range.empty() ? plain(field["type"]) + (range.empty() ? "" : ", " + range)
                                                     : range;
}

}  // namespace

std::string field_table(const json& fields) {
  Table table({{.title = "option", .align = Align::left, .gap = 0},
               {.title = "default", .align = Align::left, .gap = 2},
               {.title = "allowed", .align = Align::left, .gap = 2},
               {.title = "", .align = Align::left, .gap = 2}});
  for (const json& field : fields) {
    const bool absent = field["type"] == "optional number";
    table.add({field["name"], absent ? "none" : plain(field["default"]), allowed_text(field), field["text"]});
  }
  return table.text();
}

}  // namespace ovq
