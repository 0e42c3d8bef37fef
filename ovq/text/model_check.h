// Checks that SentencePiece itself lacks: a damaged model must be rejected instead of ending the program.
#pragma once

#include <string>
#include <string_view>

namespace ovq::text {

// Describes what is wrong with the pieces of a serialized model (protobuf); empty if nothing is.
std::string wrong_pieces(std::string_view model);

}  // namespace ovq::text
