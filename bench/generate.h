// `ovq bench generate`: a model reads a prompt and generates token by token, a single sequence. Two comparisons in
// the same run: the bytes of weights and states that a token reads against the read bandwidth, which is measured on the
// same memory after each token; and the FLOPs of the prompt against the multiply-add peak. For a trained model it also
// measures the loss on text, with both storage types of weights and states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/runner.h"
#include "bench/timing.h"
#include "ovq/models/text_session.h"
#include "ovq/train/text_loss.h"

namespace ovq::bench {

struct GenerateBenchOptions {
  BenchOptions run;                         // quick: a short prompt and few tokens
  std::string model = "paper/text-sw-ovq";  // a preset, or a label for the trained model
  models::TextModel trained;                // replaces a preset's random weights; converted to bfloat16
  std::vector<std::string> data;            // text for the loss of the trained model
  int64_t windows = 32;                     // of `context` tokens each
  int64_t context = 4096;                   // tokens of the prompt
  int64_t tokens = 24;                      // generated tokens, each timed
  int64_t piece = 1024;                     // tokens of the prompt read at a time
  int rounds = 2;                           // of prompt and tokens
};

struct GenerateCase {
  std::string name;      // how weights and states are stored
  std::string mismatch;  // how the logits differ on another instruction set; such a case is not timed
  Timing prompt, token;  // the whole prompt; one generated token
  Timing read;           // a plain read of the same weights, once after each token
  double prompt_flops = 0;
  int64_t prompt_tokens = 0;
  int64_t weight_bytes = 0, state_bytes = 0;  // read per token
  std::optional<train::TextLoss> loss;
  double bystander_cores = 0;

  int64_t bytes() const { return weight_bytes + state_bytes; }
  double bandwidth() const { return static_cast<double>(bytes()) / token.median; }
  double read_bandwidth() const { return static_cast<double>(weight_bytes) / read.median; }
  double flops() const { return prompt_flops / prompt.best; }
};

struct GenerateReport {
  Machine machine;
  std::string model;
  bool trained = false;
  double peak = 0;  // FLOP/s of the kernels' instruction set
  double bystander_cores = 0;
  double seconds = 0;
  std::vector<GenerateCase> cases;

  bool matched() const;
};

// Uses torch's current number of threads.
GenerateReport run_generate(const GenerateBenchOptions& options);

std::string to_table(const GenerateReport& report);
std::string to_json(const GenerateReport& report);

}  // namespace ovq::bench
