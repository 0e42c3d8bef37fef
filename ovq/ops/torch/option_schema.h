// Options of an op as torch's dispatcher has them, made of the list of their fields: visitors that write the arguments
// of a schema, and that read and write such arguments on a stack.
#pragma once

#include <ATen/core/stack.h>

#include <sstream>
#include <string>

#include "ovq/base/error.h"
#include "ovq/base/fields.h"

namespace ovq::ops {

// ", int chunk=128, ..."
class SchemaText {
 public:
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Range& = {}) {
    text_ << ", ";
    if constexpr (std::is_same_v<T, bool>) {
      text_ << "bool " << name << (value ? "=True" : "=False");
    } else if constexpr (std::is_enum_v<T>) {
      text_ << "str " << name << "='" << name_of(value) << "'";
    } else if constexpr (is_optional<T>) {
      text_ << "float? " << name << "=None";
    } else if constexpr (std::is_floating_point_v<T>) {
      text_ << "float " << name << "=" << std::showpoint << value;
    } else {
      text_ << "int " << name << "=" << value;
    }
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

template <class Options>
std::string option_arguments() {
  SchemaText text;
  Options defaults;
  list_fields(text, defaults);
  return text.text();
}

template <class Options>
size_t option_count() {
  size_t count = 0;
  const auto counting = [&](const auto&...) { ++count; };
  Options options;
  list_fields(counting, options);
  return count;
}

// Options as they lie on the stack, in the order of the schema.
class StackReader {
 public:
  StackReader(const char* op, c10::ArrayRef<c10::IValue> values) : op_(op), values_(values) {}

  template <class T>
  void operator()(const char* name, T& value, const char*, const Range& = {}) {
    const c10::IValue& given = values_[next_++];
    if constexpr (std::is_same_v<T, bool>) {
      value = given.toBool();
    } else if constexpr (std::is_enum_v<T>) {
      const auto found = enum_named<T>(given.toStringRef());
      check(found.has_value(), op_, name, " is '", given.toStringRef(), "'; must be ", allowed_names(value));
      value = *found;
    } else if constexpr (is_optional<T>) {
      if (!given.isNone()) value = static_cast<typename T::value_type>(given.toDouble());
    } else if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(given.toDouble());
    } else {
      if (std::is_unsigned_v<T> && given.toInt() < 0) {
        fail(op_, name, " is ", given.toInt(), "; must be an integer of at least 0");
      }
      value = static_cast<T>(given.toInt());
    }
  }
  size_t read() const { return next_; }

 private:
  const char* op_;
  c10::ArrayRef<c10::IValue> values_;
  size_t next_ = 0;
};

// Puts them there.
class StackWriter {
 public:
  explicit StackWriter(torch::jit::Stack& stack) : stack_(stack) {}

  template <class T>
  void operator()(const char*, const T& value, const char*, const Range& = {}) {
    if constexpr (std::is_enum_v<T>) {
      stack_.emplace_back(std::string(name_of(value)));
    } else if constexpr (is_optional<T>) {
      stack_.push_back(value ? c10::IValue(static_cast<double>(*value)) : c10::IValue());
    } else if constexpr (std::is_floating_point_v<T>) {
      stack_.emplace_back(static_cast<double>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      stack_.emplace_back(value);
    } else {
      stack_.emplace_back(static_cast<int64_t>(value));
    }
  }

 private:
  torch::jit::Stack& stack_;
};

}  // namespace ovq::ops
