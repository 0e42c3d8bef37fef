// Conversations as text, in the formats that published models were trained on. Models publish them as Jinja templates,
// which are recognised here but not run:
//   chatml         <|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n
//   qwen1.5, qwen2, qwen2.5, smollm2   the same, with a system message if there is none; qwen3 without
//   llama2         <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s>
//   llama3         <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>
//   llama3.1       the same, with dates in the system message; also 3.2 and 3.3
//   mistral-v0.1, mixtral, mistral-v1, mistral-v3, mistral-nemo   <s>[INST] ... [/INST] ...</s>, each with its own
//   spaces
// Tools are not supported.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::text {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatSettings {
  bool thinks = true;                // false: qwen3 is told to answer at once
  std::string date = "26 Jul 2024";  // for llama3.1, whose template has this one
};

class ChatTemplate {
 public:
  // std::invalid_argument names those there are.
  explicit ChatTemplate(std::string_view name);
  // The format of a published Jinja template, which must be the same but for trailing line breaks. DataError if it is
  // not known.
  static ChatTemplate of(std::string_view jinja);
  static std::vector<std::string> names();

  const std::string& name() const;

  // A conversation that ends with a message of the user, up to where the model answers: what the Jinja template makes
  // of it with add_generation_prompt. The token that begins a text is spelled out. std::invalid_argument if the format
  // does not have such a conversation.
  std::string text(std::span<const ChatMessage> messages, const ChatSettings& settings = {}) const;
  // What follows answer_end() in a conversation that goes on. The messages before stay as they are, where qwen3 would
  // drop thoughts from answers, and mistral-v3 and mistral-nemo move the system message to the last message.
  std::string next_text(std::string_view user, const ChatSettings& settings = {}) const;

  // The token that ends an answer.
  std::string_view answer_end() const;

 private:
  struct Format;
  explicit ChatTemplate(const Format& format) : format_(&format) {}
  static const std::vector<Format>& formats();

  const Format* format_;
};

}  // namespace ovq::text
