#include "ovq/text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/tasks/fixtures.h"
#include "tests/text/small_tokenizers.h"

namespace ovq::text {
namespace {

using nlohmann::json;
using tasks::test::error_of;

std::vector<ChatMessage> messages_of(const json& line) {
  std::vector<ChatMessage> messages;
  for (const json& message : line["messages"])
    messages.push_back({message[0].get<std::string>(), message[1].get<std::string>()});
  return messages;
}

// chat_golden.jsonl has what Jinja2 makes of the published templates: no text where the template raises an error.
TEST(ChatTemplate, TextIsThatOfThePublishedTemplates) {
  std::set<std::string> formats;
  for (const json& line : ovq::test::lines_of("../chat_golden.jsonl")) {
    const ChatTemplate chat(line["format"].get<std::string>());
    formats.insert(chat.name());
    ChatSettings settings{.thinks = line.value("thinks", true)};
    settings.date = line.value("date", settings.date);
    const std::vector<ChatMessage> messages = messages_of(line);
    if (line["text"].is_null()) {
      EXPECT_NE(error_of([&] { chat.text(messages, settings); }), "") << line;
    } else {
      EXPECT_EQ(chat.text(messages, settings), line["text"].get<std::string>()) << line;
    }
  }
  const std::vector<std::string> names = ChatTemplate::names();
  EXPECT_EQ(formats, std::set<std::string>(names.begin(), names.end()));
}

// A conversation that goes on turn by turn is the same text as the whole, without system messages.
TEST(ChatTemplate, TurnsFollowEachOther) {
  for (const std::string& name : ChatTemplate::names()) {
    const ChatTemplate chat(name);
    const std::string first = chat.text(std::vector<ChatMessage>{{"user", "One?"}});
    const std::string whole =
        chat.text(std::vector<ChatMessage>{{"user", "One?"}, {"assistant", "Two."}, {"user", "Three?"}});
    ASSERT_TRUE(whole.starts_with(first)) << name;
    const std::string rest = whole.substr(first.size());
    const std::string next = std::string(chat.answer_end()) + chat.next_text("Three?");
    ASSERT_TRUE(rest.ends_with(next)) << name << " " << rest;
    const std::string answer = rest.substr(0, rest.size() - next.size());
    EXPECT_EQ(answer, name == "llama2"                               ? " Two. "
                      : name == "mistral-v1" || name == "mistral-v3" ? " Two."
                                                                     : "Two.")
        << name;
  }
  EXPECT_EQ(ChatTemplate("chatml").answer_end(), "<|im_end|>");
  EXPECT_EQ(ChatTemplate("llama2").answer_end(), "</s>");
  EXPECT_EQ(ChatTemplate("llama3").answer_end(), "<|eot_id|>");
}

TEST(ChatTemplate, PublishedTemplatesAreRecognised) {
  const std::string start = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '";
  const std::string middle = "' + message['content'] + '<|im_end|>' + '";
  const std::string end = "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant";
  for (const std::string line : {"\n", "\\n"}) {  // as a line break, or as Jinja escapes it
    const std::string jinja = start + line + middle + line + end + line + "' }}{% endif %}";
    EXPECT_EQ(ChatTemplate::of(jinja).name(), "chatml");
    EXPECT_EQ(ChatTemplate::of(jinja + "\n").name(), "chatml");
    const std::string error = error_of([&] { ChatTemplate::of(jinja + " "); });
    EXPECT_EQ(error.find("[chat] the chat template of this model is not one of those known (its SHA-256 is "), 0u)
        << error;
    EXPECT_NE(error.find("; choose one by name: chatml, qwen1.5, "), std::string::npos) << error;
  }
  EXPECT_NE(error_of([&] { ChatTemplate::of(""); }), "");
}

TEST(ChatTemplate, BadInput) {
  EXPECT_EQ(error_of([] { ChatTemplate("llama4"); }),
            "[chat] unknown chat template \"llama4\"; did you mean \"llama2\"?");
  const auto refusal = [](const char* name, const std::vector<ChatMessage>& messages) {
    return error_of([&] { ChatTemplate(name).text(messages); });
  };
  EXPECT_EQ(refusal("chatml", {}), "[chat] the conversation is empty; must end with a message of the user");
  EXPECT_EQ(refusal("chatml", {{"user", "a"}, {"assistant", "b"}}),
            "[chat] the conversation ends with assistant; must end with a message of the user");
  EXPECT_EQ(refusal("chatml", {{"tool", "a"}, {"user", "b"}}),
            "[chat] message 0 is from tool; must be from system, user or assistant");
  EXPECT_EQ(refusal("llama2", {{"system", "s"}, {"user", "a"}, {"user", "b"}}),
            "[chat] message 2 is from user; in llama2 user and assistant must alternate");
  EXPECT_EQ(refusal("mistral-v1", {{"user", "a"}, {"system", "s"}, {"user", "b"}}),
            "[chat] message 1 is from system; mistral-v1 has only one at the start");
  EXPECT_EQ(refusal("mixtral", {{"system", "s"}, {"user", "a"}}), "[chat] mixtral has no system message");
}

}  // namespace
}  // namespace ovq::text
