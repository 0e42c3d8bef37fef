// Options of a task from JSON: what is missing keeps its default; what is unknown or of the wrong kind is an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ovq/base/closest.h"
#include "ovq/base/error.h"

namespace ovq::tasks {

class OptionReader {
 public:
  // `options` is an object, or null for none; it must outlive the reader.
  OptionReader(std::string task, const nlohmann::json& options) : task_(std::move(task)), options_(options) {
    check(options.is_object() || options.is_null(), task_.c_str(), "options are of type ", options.type_name(),
          "; expected an object");
  }

  OptionReader& read(const char* name, int64_t& value) {
    return read(name, value, "an integer", [](const nlohmann::json& found) { return found.is_number_integer(); });
  }
  OptionReader& read(const char* name, double& value) {
    return read(name, value, "a number", [](const nlohmann::json& found) { return found.is_number(); });
  }
  OptionReader& read(const char* name, bool& value) {
    return read(name, value, "true or false", [](const nlohmann::json& found) { return found.is_boolean(); });
  }
  OptionReader& read(const char* name, std::string& value) {
    return read(name, value, "a text", [](const nlohmann::json& found) { return found.is_string(); });
  }

  // To be called after all were read.
  void check_unknown() const {
    for (const auto& [name, value] : options_.items()) {
      const bool known = std::find(known_.begin(), known_.end(), name) != known_.end();
      if (!known) fail(task_.c_str(), unknown_name("option", name, known_));
    }
  }

 private:
  template <class Value, class Accepts>
  OptionReader& read(const char* name, Value& value, const char* expected, Accepts accepts) {
    known_.emplace_back(name);
    const auto found = options_.find(name);
    if (found == options_.end()) return *this;
    check(accepts(*found), task_.c_str(), name, " is ", found->dump(), "; expected ", expected);
    value = found->template get<Value>();
    return *this;
  }

  std::string task_;
  const nlohmann::json& options_;
  std::vector<std::string> known_;
};

}  // namespace ovq::tasks
