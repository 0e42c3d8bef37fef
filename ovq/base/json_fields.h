// Options to and from JSON through one list of fields: `visit(fields, options)` names each once, FieldReader takes it
// from JSON and says which field is wrong and what is allowed, FieldWriter puts it there.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ovq/base/closest.h"

namespace ovq {

using nlohmann::json;

template <class Enum, size_t n>
using EnumNames = std::array<std::pair<Enum, std::string_view>, n>;

class FieldReader {
 public:
  // `path` stands before the fields' names in errors.
  FieldReader(const json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) fail("", object, "an object");
  }

  void operator()(const char* name, int64_t& value, int64_t least) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number_integer() || field->get<int64_t>() < least)
      fail(name, *field, "an integer of at least " + std::to_string(least));
    value = field->get<int64_t>();
  }
  void operator()(const char* name, double& value) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number() || !std::isfinite(field->get<double>())) fail(name, *field, "a finite number");
    value = field->get<double>();
  }
  void operator()(const char* name, bool& value) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) fail(name, *field, "true or false");
    value = field->get<bool>();
  }
  template <class Enum, size_t n>
  void operator()(const char* name, Enum& value, const EnumNames<Enum, n>& names) {
    const json* field = find(name);
    if (field == nullptr) return;
    std::string allowed;
    for (const auto& [candidate, text] : names) {
      if (*field == text) {
        value = candidate;
        return;
      }
      allowed += (allowed.empty() ? "\"" : ", \"") + std::string(text) + "\"";
    }
    fail(name, *field, "one of " + allowed);
  }

  // For fields of other kinds; nullptr if absent.
  const json* find(const char* name) {
    known_.emplace_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void fail(const std::string& name, const json& came, const std::string& expected) const {
    const std::string where = name.empty() ? path_ : path_.empty() ? name : path_ + "." + name;
    throw std::invalid_argument("[config] " + where + " is " + came.dump() + "; must be " + expected);
  }
  // Fields that nobody asked for are an error.
  void finish() const {
    for (const auto& [name, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      throw std::invalid_argument("[config] " +
                                  unknown_name(path_.empty() ? "field" : "field of " + path_, name, known_));
    }
  }

 private:
  const json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

class FieldWriter {
 public:
  explicit FieldWriter(json& object) : object_(object) {}
  void operator()(const char* name, int64_t& value, int64_t /*least*/) { object_[name] = value; }
  void operator()(const char* name, double& value) { object_[name] = value; }
  void operator()(const char* name, bool& value) { object_[name] = value; }
  template <class Enum, size_t n>
  void operator()(const char* name, Enum& value, const EnumNames<Enum, n>& names) {
    for (const auto& [candidate, text] : names)
      if (candidate == value) object_[name] = text;
  }

 private:
  json& object_;
};

}  // namespace ovq
