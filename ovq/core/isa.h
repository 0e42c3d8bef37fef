// The instruction set the kernels run on: the best this machine has, or the one named by OVQ_ISA or select_isa().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ovq::kernels {

std::string isa();                          // e.g. "AVX2"
std::vector<std::string> available_isas();  // best first
void select_isa(std::string_view name);     // "": the best. std::invalid_argument if this machine does not have it

}  // namespace ovq::kernels
