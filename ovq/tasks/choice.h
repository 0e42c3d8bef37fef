// Multiple-choice benchmarks from their published JSONL files, put the way the common evaluation harness (EleutherAI's
// lm-evaluation-harness, no examples before the question) puts them. A model scores each choice by the log-likelihood
// of its continuation given its context; the best is its answer.
//
//   PIQA        Question: {goal}\nAnswer:                            + " {sol1}", " {sol2}"
//   ARC         Question: {stem}\nAnswer:                            + " {choice}" ...
//   HellaSwag   {activity_label}: {ctx_a} {ctx_b, capitalised}       + " {ending}" ...; [..] and double spaces removed
//   WinoGrande  {sentence up to the blank}{option1}, ..{option2}     + " {sentence after it}": what follows is scored,
//   not the option
//   endings     {context}                                            + " {ending}" ...; made by endings.h
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::tasks {

enum class Benchmark { piqa, hellaswag, winogrande, arc, endings };  // arc: easy and challenge

Benchmark benchmark_from_name(const std::string& name);  // errors name the closest
std::vector<std::string> benchmark_names();

struct Choice {
  std::string context, continuation;  // the continuation with its leading space
};

struct Question {
  std::vector<Choice> choices;
  int64_t answer = 0;  // the right one
};

// All questions of a file. Bad lines are errors that name file, line and field. PIQA's answers come from the field
// `label` or, as published, from the file `<name>-labels.lst` beside `<name>.jsonl`.
std::vector<Question> read_questions(Benchmark benchmark, const std::string& path);

struct EncodedChoice {
  std::vector<int32_t> context, continuation;
  // Of the continuation without its leading space. The harness divides by characters for its length-normalised score.
  int64_t bytes = 0, characters = 0;
};

// Context and continuation are tokenised together, and split where the tokens of the context alone end; spaces at the
// end of the context go to the continuation first.
EncodedChoice encode(const Choice& choice, const text::Tokenizer& tokenizer);

}  // namespace ovq::tasks
