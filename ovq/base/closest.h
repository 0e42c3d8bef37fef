// For messages about names nobody knows: which known one was probably meant.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq {

// Letters to insert, delete, replace or swap with a neighbour until `a` reads `b`. O(|a| |b|)
int64_t edit_distance(std::string_view a, std::string_view b);

// The names within a third of their length of `name`, closest first, at most `limit`; of equals the earlier one first.
std::vector<std::string> closest_names(std::string_view name, const std::vector<std::string>& names, size_t limit = 3);

// `unknown task "recal"; did you mean "recall"?` or, if nothing is close, `...; expected one of recall, icl`; of many
// names the nearest five.
std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& names);

}  // namespace ovq
