// Suggestions for unknown names: the known names that were probably meant.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq {

// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`. O(|a| |b|)
int64_t edit_distance(std::string_view a, std::string_view b);

// The names that begin with `name`, or whose distance to it is at most a third of their length, closest first, at most
// `limit`. A longer name counts as one change. Ties keep the order of `names`.
std::vector<std::string> closest_names(std::string_view name, const std::vector<std::string>& names, size_t limit = 3);

// `unknown task "recal"; did you mean "recall"?` or, if nothing is close, `...; expected one of recall, icl`. If there
// are many names, it lists the nearest five.
std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& names);

}  // namespace ovq
