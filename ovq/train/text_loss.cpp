#include "ovq/train/text_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/table.h"
#include "ovq/tasks/corpus.h"

namespace ovq::train {
namespace {

using at::Tensor;

struct TextWindow {
  const tasks::Corpus* corpus = nullptr;
  const tasks::Corpus::Document* document = nullptr;
  double byte_scale = 1;  // of the document
  int64_t offset = 0;
  int64_t length = 0;  // tokens read; as many are predicted
  int64_t first = 0;   // position of the first token that counts
};

// Bytes that each token stands for.
std::vector<double> bytes_by_token(const text::Tokenizer& tokenizer) {
  std::vector<double> bytes;
  for (int64_t token = 0; token < tokenizer.vocab(); ++token)
    bytes.push_back(static_cast<double>(tokenizer.token_bytes(static_cast<int32_t>(token)).size()));
  return bytes;
}

double byte_scale(const tasks::Corpus& corpus, const tasks::Corpus::Document& document,
                  const std::vector<double>& bytes) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> tokens;
  double sum = 0;
  for (int64_t at = 0; at < document.tokens; at += kBlock) {
    tokens.resize(static_cast<size_t>(std::min(kBlock, document.tokens - at)));
    corpus.read(document, at, tokens);
    for (const int32_t token : tokens) sum += bytes[static_cast<size_t>(token)];
  }
  return sum > 0 ? static_cast<double>(document.text_bytes) / sum : 1;
}

void add_windows(std::vector<TextWindow>& windows, TextWindow whole, const TextLossOptions& options) {
  const int64_t targets = whole.document->tokens - 1;
  const int64_t length = options.length == 0 ? targets : options.length;
  const int64_t step = options.stride == 0 ? length : options.stride;
  for (int64_t offset = 0; offset < targets; offset += step) {
    TextWindow window = whole;
    window.offset = offset;
    window.length = std::min(length, targets - offset);
    window.first = offset == 0 || options.stride == 0 ? 0 : length - step;
    if (window.first < window.length) windows.push_back(window);
    if (offset + length >= targets) break;
  }
}

// Keeps `count` windows, evenly spread.
void thin_out(std::vector<TextWindow>& windows, int64_t count) {
  const auto all = static_cast<int64_t>(windows.size());
  if (count == 0 || count >= all) return;
  std::vector<TextWindow> kept;
  for (int64_t i = 0; i < count; ++i) kept.push_back(windows[static_cast<size_t>(i * all / count)]);
  windows = std::move(kept);
}

class TextReader {
 public:
  TextReader(const models::TextModel& model, const TextLossOptions& options, const std::function<bool()>& stop)
      : model_(*model.model), bytes_(bytes_by_token(*model.tokenizer)), options_(options), stop_(stop) {
    result.bin = options.bin;
    if (options.identifiers) identifiers_.emplace(*model.tokenizer);
  }

  // Windows of one length side by side in a batch.
  void read(std::span<const TextWindow> batch) {
    const int64_t length = batch.front().length, rows = static_cast<int64_t>(batch.size());
    models::ModelState state(options_.state_dtype);
    losses_.assign(batch.size(), {});
    for (int64_t at = 0; at < length; at += options_.piece) {
      if (stop_ && stop_()) throw std::runtime_error("evaluation was interrupted");
      const int64_t count = std::min(options_.piece, length - at);
      const Tensor tokens = at::empty({rows, count + 1}, at::kInt);
      for (int64_t row = 0; row < rows; ++row) {
        const TextWindow& window = batch[static_cast<size_t>(row)];
        window.corpus->read(*window.document, window.offset + at,
                            {tokens.data_ptr<int32_t>() + row * (count + 1), static_cast<size_t>(count + 1)});
      }
      const Tensor hidden = model_.hidden(tokens.narrow(1, 0, count), state);
      const Tensor wanted = tokens.narrow(1, 1, count).to(at::kLong);
      const Tensor losses =
          at::cross_entropy_loss(model_.logits(hidden).flatten(0, 1), wanted.flatten(), {}, at::Reduction::None);
      count_losses(batch, at, count, losses.data_ptr<float>(), wanted);
    }
    if (identifiers_) count_identifiers(batch);
    result.windows += rows;
    result.tokens += rows * length;
    result.state_bytes = state.nbytes() / rows;
  }

  TextLoss result;

 private:
  void count_losses(std::span<const TextWindow> batch, int64_t at, int64_t count, const float* losses,
                    const Tensor& wanted) {
    const Tensor targets = wanted.contiguous();
    const int64_t* target = targets.data_ptr<int64_t>();
    for (size_t row = 0; row < batch.size(); ++row) {
      const TextWindow& window = batch[row];
      if (identifiers_) losses_[row].insert(losses_[row].end(), losses, losses + count);
      for (int64_t i = at; i < at + count; ++i, ++losses, ++target) {
        if (i < window.first) continue;
        const double bytes = bytes_[static_cast<size_t>(*target)] * window.byte_scale;
        for (TextLossBin* bin : {&result.total, &result.bins[i / options_.bin]}) {
          ++bin->targets;
          bin->loss_sum += *losses;
          bin->bytes += bytes;
        }
      }
    }
  }

  void count_identifiers(std::span<const TextWindow> batch) {
    for (size_t row = 0; row < batch.size(); ++row) {
      const TextWindow& window = batch[row];
      std::vector<int32_t> tokens(losses_[row].size() + 1);
      window.corpus->read(*window.document, window.offset, tokens);
      identifiers_->add(tokens, losses_[row], window.first);
    }
    result.identifiers = identifiers_->result();
  }

  models::LanguageModel& model_;
  const std::vector<double> bytes_;
  const TextLossOptions& options_;
  const std::function<bool()>& stop_;
  std::optional<IdentifierCounter> identifiers_;
  std::vector<std::vector<float>> losses_;  // of the current windows, for identifiers
};

}  // namespace

double TextLossBin::bits_per_byte() const { return bytes > 0 ? loss_sum / std::numbers::ln2 / bytes : 0; }

TextLoss text_loss(const models::TextModel& model, const std::vector<std::string>& paths,
                   const TextLossOptions& options, const std::function<bool()>& stop) {
  check_fields("eval", options);
  check(!paths.empty(), "eval", "no text is given");
  check(options.stride == 0 || (options.length > 0 && options.stride <= options.length), "eval", "stride is ",
        options.stride, "; must be at most the length ", options.length);
  const std::vector<double> bytes = bytes_by_token(*model.tokenizer);
  std::vector<std::unique_ptr<tasks::Corpus>> corpora;
  std::vector<TextWindow> windows;
  int64_t documents = 0;
  for (const std::string& path : paths) {
    corpora.push_back(std::make_unique<tasks::Corpus>(path, *model.tokenizer, 2));
    for (const tasks::Corpus::Document& document : corpora.back()->documents()) {
      ++documents;
      add_windows(windows,
                  {.corpus = corpora.back().get(),
                   .document = &document,
                   .byte_scale = byte_scale(*corpora.back(), document, bytes)},
                  options);
    }
  }
  thin_out(windows, options.windows);
  std::stable_sort(windows.begin(), windows.end(),
                   [](const TextWindow& a, const TextWindow& b) { return a.length > b.length; });
  const torch::NoGradGuard no_grad;
  model.model->eval();
  TextReader reader(model, options, stop);
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0, count = 0; at < windows.size(); at += count) {
    count = 1;
    while (count < static_cast<size_t>(options.batch) && at + count < windows.size() &&
           windows[at + count].length == windows[at].length)
      ++count;
    reader.read(std::span(windows).subspan(at, count));
  }
  reader.result.length = options.length;
  reader.result.documents = documents;
  reader.result.weight_bytes = model.model->weight_bytes();
  reader.result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return reader.result;
}

std::string to_table(const TextLoss& loss) {
  Table table({{.title = "positions", .width = 16, .gap = 0},
               {.title = "targets", .width = 10},
               {.title = "loss", .width = 9},
               {.title = "bits/byte", .width = 10}});
  const auto add = [&](const std::string& name, const TextLossBin& bin) {
    table.add({name, std::to_string(bin.targets), fmt::format("{:.4f}", bin.loss()),
               fmt::format("{:.4f}", bin.bits_per_byte())});
  };
  for (const auto& [index, bin] : loss.bins)
    add(fmt::format("{} - {}", index * loss.bin, (index + 1) * loss.bin - 1), bin);
  add("all", loss.total);
  return fmt::format("{} windows of {} documents, {:.0f} tokens/s, weights {}, state {}\n\n{}", loss.windows,
                     loss.documents, static_cast<double>(loss.tokens) / loss.seconds,
                     bytes_text(static_cast<double>(loss.weight_bytes)),
                     bytes_text(static_cast<double>(loss.state_bytes)), table.text()) +
         (loss.identifiers ? "\n" + to_table(*loss.identifiers) : "");
}

nlohmann::json to_json(const TextLoss& loss) {
  const auto bin_json = [](const TextLossBin& bin) {
    return nlohmann::json{{"targets", bin.targets}, {"loss", bin.loss()}, {"bits_per_byte", bin.bits_per_byte()}};
  };
  nlohmann::json object = bin_json(loss.total);
  object["length"] = loss.length;
  object["windows"] = loss.windows;
  object["documents"] = loss.documents;
  object["tokens_per_second"] = loss.seconds > 0 ? static_cast<double>(loss.tokens) / loss.seconds : 0;
  object["state_bytes"] = loss.state_bytes;
  object["weight_bytes"] = loss.weight_bytes;
  object["bin"] = loss.bin;
  object["bins"] = nlohmann::json::array();
  for (const auto& [index, bin] : loss.bins) {
    nlohmann::json one = bin_json(bin);
    one["first"] = index * loss.bin;
    object["bins"].push_back(one);
  }
  if (loss.identifiers) object["identifiers"] = to_json(*loss.identifiers);
  return object;
}

}  // namespace ovq::train
