// Multiple-choice benchmarks from their published JSONL files, with the prompts of EleutherAI's lm-evaluation-harness
// (zero-shot). A model scores each choice by the log-likelihood of its continuation given its context; the best score
// is its answer.
//
//   PIQA        Question: {goal}\nAnswer:                            + " {sol1}", " {sol2}"
//   ARC         Question: {stem}\nAnswer:                            + " {choice}" ...
//   HellaSwag   {activity_label}: {ctx_a} {ctx_b, capitalised}       + " {ending}" ...; [..] and double spaces removed
//   WinoGrande  {sentence up to the blank}{option1}, ..{option2}     + " {sentence after it}": scores the text after
//   the option, not the option
//   endings     {context}                                            + " {ending}" ...; made by endings.h
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::tasks {

enum class Benchmark { piqa, hellaswag, winogrande, arc, endings };  // arc: easy and challenge

Benchmark benchmark_from_name(const std::string& name);  // an unknown name is an error that suggests the closest
std::vector<std::string> benchmark_names();

struct Choice {
  std::string context, continuation;  // the continuation with its leading space
};

struct Question {
  std::vector<Choice> choices;
  int64_t answer = 0;  // index of the right choice
};

// All questions of a file. A bad line is an error that names file, line and field. PIQA's answers come from the field
// `label` or, as published, from the file `<name>-labels.lst` beside `<name>.jsonl`.
std::vector<Question> read_questions(Benchmark benchmark, const std::string& path);

struct EncodedChoice {
  std::vector<int32_t> context, continuation;
  // Of the continuation without its leading space. The harness divides by characters to normalise the score.
  int64_t bytes = 0, characters = 0;
};

// Tokenises context and continuation together and splits them after as many tokens as the context alone has. Spaces at
// the end of the context are first moved to the continuation.
EncodedChoice encode(const Choice& choice, const text::Tokenizer& tokenizer);

}  // namespace ovq::tasks
