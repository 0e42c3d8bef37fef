// Tables of options, for display.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ovq {

// A row for each field of a FieldDescriber's list: name, default, allowed values and description.
std::string field_table(const nlohmann::json& fields);

}  // namespace ovq
