// Converts options from and to JSON through their list of fields (fields.h). FieldReader reads each field from an
// object; its errors name the field and the allowed values. FieldWriter writes the fields, FieldDescriber lists them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ovq/base/closest.h"
#include "ovq/base/fields.h"

namespace ovq {

using nlohmann::json;

// JSON has no NaN: it is written as null.
inline double number_or_nan(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// Where the options come from, for errors: "[config] mixers.ovq.chunk is 0; must be ...".
struct FieldContext {
  std::string op = "config";
  std::string path = "";           // prefix of the fields' names
  std::string kind = "field";      // the word for an unknown name
  std::string demand = "must be";  // or "expected"
  bool check_ranges = true;        // false: the user of the options checks them
};

// Whether a retired field with this value makes no difference.
inline bool is_ignored(const RetiredField& field, const json& value) {
  return field.now == nullptr && (!field.had_effect || value.is_null() || value == json::parse(field.value));
}

class FieldReader {
 public:
  // The object must outlive the reader.
  FieldReader(const json& object, FieldContext context) : object_(object), context_(std::move(context)) {
    if (!object.is_object()) fail("", object, "an object");
  }
  FieldReader(const json& object, std::string path) : FieldReader(object, FieldContext{.path = std::move(path)}) {}

  // Reads every field of the options. An object that an earlier version wrote may hold retired fields.
  template <class Options>
  void read(Options& options) {
    for (const RetiredField& field : retired_fields_of(options)) accept(field);
    list_fields(*this, options);
  }

  template <class T>
  void operator()(const char* name, T& value, const char* /*text*/, const Range& range = {}) {
    const json* field = find(name);
    if (field == nullptr) return;
    if constexpr (std::is_same_v<T, bool>) {
      if (!field->is_boolean()) fail(name, *field, "true or false");
      value = field->get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!field->is_string()) fail(name, *field, "a text");
      value = field->get<std::string>();
    } else if constexpr (std::is_enum_v<T>) {
      const auto found = field->is_string() ? enum_named<T>(field->get<std::string>()) : std::nullopt;
      if (!found) fail(name, *field, "one of " + quoted_names(value));
      value = *found;
    } else if constexpr (std::is_integral_v<T>) {
      const Range allowed = !context_.check_ranges ? Range() : std::is_signed_v<T> ? range : at_least(0);
      const bool fits = !field->is_number_unsigned() ||
                        field->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<T>::max());
      const bool good = field->is_number_integer() && fits && allowed.contains(field->get<double>());
      if (!good) fail(name, *field, "an integer" + after("of", allowed));
      value = field->get<T>();
    } else if constexpr (is_optional<T>) {
      const double number = finite_number(name, *field);
      if (context_.check_ranges && number != 0 && !range.contains(number))
        fail(name, number, range.text() + ", or 0 for none");
      value = number == 0 ? T() : T(static_cast<typename T::value_type>(number));
    } else {
      const double number = finite_number(name, *field);
      if (context_.check_ranges && !range.contains(number)) fail(name, number, range.text());
      value = static_cast<T>(number);
    }
  }

  // Returns a field of another type; nullptr if absent.
  const json* find(const char* name) {
    known_.emplace_back(name);
    auto at = object_.find(name);
    if (const auto before = renamed_.find(name); before != renamed_.end()) at = object_.find(before->second);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void fail(const std::string& name, const json& came, const std::string& expected) const {
    const std::string& path = context_.path;
    const std::string where = name.empty() ? path : path.empty() ? name : path + "." + name;
    ovq::fail(context_.op.c_str(), where, " is ", came.dump(), "; ", context_.demand, " ", expected);
  }
  // Throws if the object has fields that were not read.
  void finish() const {
    for (const auto& [name, value] : object_.items()) {
      if (contains(known_, name) || contains(retired_, name)) continue;
      const std::string kind = context_.kind + (context_.path.empty() ? "" : " of " + context_.path);
      ovq::fail(context_.op.c_str(), unknown_name(kind, name, known_));
    }
  }

 private:
  static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  void accept(const RetiredField& field) {
    const auto at = object_.find(field.name);
    if (at == object_.end()) return;
    retired_.emplace_back(field.name);
    if (field.now != nullptr) {
      if (object_.contains(field.now)) fail(field.name, *at, std::string("absent where ") + field.now + " is given");
      renamed_[field.now] = field.name;
    } else if (!is_ignored(field, *at)) {
      fail(field.name, *at, std::string(field.value) + " or absent: this option was removed");
    }
  }
  static std::string after(const char* word, const Range& range) {
    const std::string text = range.text();
    return text.empty() ? "" : range.bounded_above() ? " " + text : std::string(" ") + word + " " + text;
  }
  double finite_number(const char* name, const json& field) const {
    if (!field.is_number() || !std::isfinite(field.get<double>())) {
      fail(name, field, context_.check_ranges ? "a finite number" : "a number");
    }
    return field.get<double>();
  }
  template <class Enum>
  static std::string quoted_names(Enum any) {
    std::string text;
    for (const auto& [value, name] : enum_names(any)) text += (text.empty() ? "\"" : ", \"") + std::string(name) + "\"";
    return text;
  }

  const json& object_;
  FieldContext context_;
  std::vector<std::string> known_;
  std::vector<std::string> retired_;                         // names of the object's retired fields
  std::map<std::string, std::string, std::less<>> renamed_;  // the object's name of a field by its present name
};

// A value in JSON; an absent one is 0.
template <class T>
json field_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else if constexpr (is_optional<T>) {
    return static_cast<double>(value.value_or(0));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else {
    return value;
  }
}

class FieldWriter {
 public:
  explicit FieldWriter(json& object) : object_(object) {}
  template <class T>
  void operator()(const char* name, const T& value, const char* /*text*/, const Range& = {}) {
    object_[name] = field_value(value);
  }

 private:
  json& object_;
};

// Builds [{"name", "type", "default", "text", "range", "zero", "values"}, ...] from default options.
class FieldDescriber {
 public:
  template <class T>
  void operator()(const char* name, const T& value, const char* text, const Range& range = {}) {
    json field = {{"name", name}, {"default", field_value(value)}, {"text", text}};
    if constexpr (std::is_same_v<T, bool>) {
      field["type"] = "bool";
    } else if constexpr (std::is_same_v<T, std::string>) {
      field["type"] = "text";
    } else if constexpr (std::is_enum_v<T>) {
      field["type"] = "choice";
      for (const auto& [candidate, name] : enum_names(value)) field["values"].push_back(name);
    } else if constexpr (std::is_integral_v<T>) {
      field["type"] = "integer";
    } else {
      field["type"] = is_optional<T> ? "optional number" : "number";
    }
    if (const std::string allowed = range.text(); !allowed.empty()) field["range"] = allowed;
    if (range.zero != nullptr) field["zero"] = range.zero;
    fields_.push_back(std::move(field));
  }
  const json& fields() const { return fields_; }

 private:
  json fields_ = json::array();
};

template <class Options>
json fields_to_json(const Options& options) {
  json object = json::object();
  Options copy = options;
  FieldWriter writer(object);
  list_fields(writer, copy);
  return object;
}

// Removes the retired fields that FieldReader ignores and gives renamed ones their present name, so that objects of
// different versions compare equal.
template <class Options>
void update_retired_fields(json& object, const Options& options) {
  for (const RetiredField& field : retired_fields_of(options)) {
    const auto at = object.find(field.name);
    if (at == object.end()) continue;
    if (field.now != nullptr && !object.contains(field.now)) {
      object[field.now] = json(*at);
      object.erase(field.name);
    } else if (is_ignored(field, *at)) {
      object.erase(at);
    }
  }
}

// Adds them with their last default, as earlier versions wrote these options.
template <class Options>
void add_retired_fields(json& object, const Options& options) {
  for (const RetiredField& field : retired_fields_of(options)) {
    if (field.now == nullptr) object[field.name] = json::parse(field.value);
  }
}

template <class Options>
json describe_fields(Options options = {}) {
  FieldDescriber describer;
  list_fields(describer, options);
  return describer.fields();
}

}  // namespace ovq
