#include "ovq/text/model_check.h"

#include <cstdint>
#include <limits>

namespace ovq::text {
namespace {

// Iterates over the fields of a message in protobuf's format.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  bool sound() const { return sound_; }
  uint64_t number() const { return number_; }
  bool has_bytes() const { return has_bytes_; }  // the field has a length
  std::string_view bytes() const { return bytes_; }

  // False at the end and where the bytes are invalid.
  bool next() {
    if (rest_.empty() || !sound_) return false;
    const uint64_t tag = variable();
    number_ = tag >> 3;
    has_bytes_ = (tag & 7) == 2;
    switch (tag & 7) {
      case 0:
        variable();
        break;
      case 1:
        skip(8);
        break;
      case 2:
        bytes_ = skip(variable());
        break;
      case 5:
        skip(4);
        break;
      default:
        sound_ = false;  // protobuf groups, which a model does not have
    }
    sound_ = sound_ && number_ != 0 && tag <= std::numeric_limits<uint32_t>::max();
    return sound_;
  }

 private:
  uint64_t variable() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    sound_ = false;
    return 0;
  }
  std::string_view skip(uint64_t count) {
    if (count > rest_.size()) sound_ = false;
    const std::string_view skipped = rest_.substr(0, count);
    rest_.remove_prefix(skipped.size());
    return skipped;
  }

  std::string_view rest_;
  uint64_t number_ = 0;
  std::string_view bytes_;
  bool has_bytes_ = false, sound_ = true;
};

}  // namespace

std::string wrong_pieces(std::string_view model) {
  constexpr uint64_t kPieces = 1, kSpelling = 1;
  int64_t pieces = 0;
  Message fields(model);
  while (fields.next()) {
    if (fields.number() != kPieces || !fields.has_bytes()) continue;
    std::string_view spelling;
    Message piece(fields.bytes());
    while (piece.next()) {
      if (piece.number() == kSpelling && piece.has_bytes()) spelling = piece.bytes();
    }
    const char* const wrong = !piece.sound()                         ? " is damaged"
                              : spelling.empty()                     ? " is empty"
                              : spelling.find('\0') != spelling.npos ? " has a byte of value 0"
                                                                     : nullptr;
    if (wrong != nullptr) return "piece " + std::to_string(pieces) + wrong;
    ++pieces;
  }
  return fields.sound() ? "" : "its fields are damaged after piece " + std::to_string(pieces);
}

}  // namespace ovq::text
