// What SentencePiece itself does not check before it builds on it: a damaged model must be refused, not end the
// program.
#pragma once

#include <string>
#include <string_view>

namespace ovq::text {

// What is wrong with the pieces of a serialized model (protobuf); empty if nothing is.
std::string wrong_pieces(std::string_view model);

}  // namespace ovq::text
