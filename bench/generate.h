// `ovq bench generate`: a model reads a prompt and goes on token by token, one sequence, beside what the machine can
// do: the bytes of weights and states that a token has to read against the read bandwidth, measured in turn with the
// tokens, on the same memory; the FLOPs of the prompt against the multiply-add peak, measured in the same run; and
// beside the same model composed of torch calls. Of a trained model also the loss on text, with weights and states
// stored either way.
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
  std::string model = "paper/text-sw-ovq";  // a preset, or what to call the trained one
  models::TextModel trained;                // instead of a preset's random weights; becomes one of bfloat16
  std::vector<std::string> data;            // text that the trained model's loss is measured on
  int64_t windows = 32;                     // of `context` tokens of it
  int64_t context = 4096;                   // tokens of the prompt
  int64_t tokens = 24;                      // that follow, each timed
  int64_t piece = 1024;                     // tokens of the prompt read at a time
  int rounds = 2;                           // of prompt and tokens
  bool composed = true;                     // also composed of torch calls
};

struct GenerateCase {
  std::string name;      // how weights and states are stored
  std::string mismatch;  // how the logits differed from those of the composed model; such a case is not timed
  Timing prompt, token;  // of all tokens of the prompt; of one that follows
  Timing read;           // of the same weights, from front to back and nothing else, once after each token
  double prompt_flops = 0;
  int64_t prompt_tokens = 0;
  int64_t weight_bytes = 0, state_bytes = 0;  // that a token reads
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

// With the threads torch has been given.
GenerateReport run_generate(const GenerateBenchOptions& options);

std::string to_table(const GenerateReport& report);
std::string to_json(const GenerateReport& report);

}  // namespace ovq::bench
