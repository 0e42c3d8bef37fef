// The loss of a model on text by position. Documents are cut into windows; each window is read from its start as a
// stream, in pieces with carried state, so memory grows with the length only if the model's state does.
//
//   side by side, length 4:             [0 1 2 3][4 5 6 7][8 9]       every token but a document's first is predicted
//   sliding, length 4, stride 2:        [0 1 2 3]
//                                           [2 3 4 5]                 of all windows but the first only what is new,
//                                               [4 5 6 7]             after at least length - stride tokens
//
// Bits per byte: loss / ln 2 over the bytes of the text behind the predicted tokens, so that tokenizers can be
// compared. A token counts by its own bytes, scaled so that a document's tokens together count as its text.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/models/text_session.h"
#include "ovq/train/identifier_loss.h"

namespace ovq::train {

struct TextLossOptions {
  int64_t length = 0;  // 0: whole documents
  int64_t stride = 0;  // 0: side by side
  int64_t bin = 256;
  int64_t batch = 4;
  int64_t piece = 256;
  int64_t windows = 0;  // 0: all
  bool identifiers = false;
  models::StateDtype state_dtype = models::StateDtype::float32;
};

template <class Fields>
void list_fields(Fields& field, TextLossOptions& o) {
  field("length", o.length, "tokens per window", or_zero(at_least(1), "whole documents"));
  field("stride", o.stride, "tokens between the starts of windows", or_zero(at_least(1), "side by side"));
  field("bin", o.bin, "positions per bin of the loss", at_least(1));
  field("batch", o.batch, "windows read at a time", at_least(1));
  field("piece", o.piece, "tokens of a window read at a time", at_least(1));
  field("windows", o.windows, "windows to read, spread over the text", or_zero(at_least(1), "all"));
  field("identifiers", o.identifiers, "also measure the loss of identifiers by the distance to their last occurrence");
  field("state_dtype", o.state_dtype, "dtype of KV caches and centroids in memory");
}

struct TextLossBin {
  int64_t targets = 0;
  double loss_sum = 0, bytes = 0;

  double loss() const { return targets == 0 ? 0 : loss_sum / static_cast<double>(targets); }
  double bits_per_byte() const;
};

struct TextLoss {
  int64_t length = 0;  // of a window; 0: whole documents
  int64_t windows = 0, documents = 0;
  TextLossBin total;
  std::map<int64_t, TextLossBin> bins;  // by position in the window / bin
  int64_t bin = 0;
  std::optional<IdentifierLoss> identifiers;  // if asked for
  int64_t state_bytes = 0;                    // of one window, at the end of the last one
  int64_t weight_bytes = 0;
  double seconds = 0;
  int64_t tokens = 0;  // read
};

// Reads text files, folders of .txt files and files of tokens. `stop` may be empty; it is called between pieces, and
// true ends with std::runtime_error.
TextLoss text_loss(const models::TextModel& model, const std::vector<std::string>& paths,
                   const TextLossOptions& options, const std::function<bool()>& stop = {});

std::string to_table(const TextLoss& loss);
nlohmann::json to_json(const TextLoss& loss);

}  // namespace ovq::train
