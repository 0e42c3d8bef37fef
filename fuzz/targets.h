// What is fuzzed: every reader of files, fed with bytes. A reader may refuse them by std::invalid_argument or
// std::runtime_error; anything else that it throws, and whatever the sanitizers find, is a fault.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::fuzz {

struct Target {
  std::string name;
  std::function<void(std::string_view bytes)> read;
  std::function<std::vector<std::string>()> seeds;  // good input, made by the project's own writers
};

std::vector<Target> file_targets();      // of the libraries without torch
std::vector<Target> torch_targets();     // of those with it
std::vector<Target> argument_targets();  // of the program

// The targets of this program.
std::vector<Target> targets();
// std::invalid_argument names those there are.
const Target& target_named(const std::string& name, const std::vector<Target>& targets);

// A file of these bytes, in memory where the system has such a place; the same path at every call.
std::string file_of(std::string_view bytes);

// Runs `body`, which may refuse its input as said above.
void may_refuse(const std::function<void()>& body);

// `bytes` changed in one to four places, as a function of `seed`.
std::string mutated(std::string bytes, uint64_t seed);

}  // namespace ovq::fuzz
