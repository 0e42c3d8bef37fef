// What options there are, for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ovq {

// A row for each field of a FieldDescriber's list: name, default, what is allowed, what it is.
std::string field_table(const nlohmann::json& fields);

}  // namespace ovq
