#include "ovq/text/chat_template.h"

#include <algorithm>
#include <array>

#include "ovq/base/closest.h"
#include "ovq/base/error.h"
#include "ovq/base/files/sha256.h"
#include "ovq/text/unicode.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr const char* kChat = "chat";

// SHA-256 of the published templates, with each \n as a line break and without those at the end.
struct Published {
  std::string_view sha256;
  const char* name;
};
constexpr auto kPublished = std::to_array<Published>({
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", "chatml"},
    {"58c1a1f04baa7adaeaba1f90267c3d57d9396f0c1f0129bdde9e76d3c6784af7", "chatml"},
    {"7a2fad4301dcce93b13747dfd6ee5fa696dc12de86b85b86344bea8f649022b3", "qwen1.5"},
    {"af9c0233881b083b52ff773580215222b5440ac3d0beeeca99b76329b048f8db", "qwen1.5"},
    {"793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", "qwen2"},
    {"7d6302983e64f35c4ad9459413ee827d5dcfa23ba5373f58cde030c9f724f7e8", "qwen2"},
    {"a18cc698dd45623eb707279d08e66f7bb8d76afc89ead84016b88487b395b5cc", "qwen2.5"},
    {"2df317a15cbc983d9602cc391d33be17237d47ec7eb11ead80fae277143958aa", "qwen3"},
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "smollm2"},
    {"9780fae5bfea3cfd7be37d328c6edfd296a8869be8131495bbe7eb37e780c88c", "llama2"},
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", "llama3"},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "llama3"},
    {"0cac23ffd2b33ff7b039e17ee143a080053318146fdc788f1d49ed4745aa8683", "llama3.1"},
    {"99799a835a31e1d33c4a9c7ee8a0de3923b291a95155ed6dc8efcbd0fe1d0238", "llama3.1"},
    {"7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495", "mistral-v0.1"},
    {"26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7", "mixtral"},
    {"1c6594f8393552ef16bbf3ddecb67d8258fb8d66339a1a092a8f8496061f02d3", "mistral-v1"},
    {"9074ed36d7503f0f63bd70ef4a0db1e12ec90718aef446404917f5ee3216e2f3", "mistral-v3"},
    {"1127255163dd25a2fd472f9901035aa9e78dc77ca33efdd010f5c8ea87e5d436", "mistral-nemo"},
    {"962c60d6f78274641b82606abbb59b4c5b1163fc7b9b8c5a0e2dcf70a55a79df", "mistral-nemo"},
});

// Python's str.strip.
std::string stripped(std::string_view text) {
  const auto is_space = [](char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); };
  while (!text.empty() && is_space(first_code_point(text).value)) text.remove_prefix(first_code_point(text).size);
  while (!text.empty() && is_space(last_code_point(text).value)) text.remove_suffix(last_code_point(text).size);
  return std::string(text);
}

// An answer without the thoughts of qwen3 before it.
std::string without_thoughts(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = answer.rfind(kEnd);
  if (end == std::string_view::npos) return std::string(answer);
  answer.remove_prefix(end + kEnd.size());
  answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
  return std::string(answer);
}

}  // namespace

struct ChatTemplate::Format {
  enum class Style { chatml, llama2, llama3, mistral };
  enum class SystemPlace { none, own, first_user, last_user };  // of the system message

  std::string name;
  Style style = Style::chatml;
  SystemPlace system = SystemPlace::own;
  std::string default_system;
  bool has_dates = false, has_thoughts = false;
  // Around messages; for llama2 and mistral also where the text begins.
  std::string begin, user_start, user_end, answer_start, answer_end, after_answer;
  bool strips = false, strips_answers = false;

  std::string header(std::string_view role) const {
    if (style == Style::chatml) return "<|im_start|>" + std::string(role) + "\n";
    return "<|start_header_id|>" + std::string(role) + "<|end_header_id|>\n\n";
  }
  std::string asking(const ChatSettings& settings) const {
    if (style == Style::llama2 || style == Style::mistral) return "";
    return header("assistant") + (has_thoughts && !settings.thinks ? "<think>\n\n</think>\n\n" : "");
  }
  std::string user(std::string_view content) const {
    return user_start + (strips ? stripped(content) : std::string(content)) + user_end;
  }
  std::string answer(std::string_view content) const {
    const bool strip = strips || strips_answers;
    return answer_start + (strip ? stripped(content) : std::string(content)) + answer_end + after_answer;
  }
};

const std::vector<ChatTemplate::Format>& ChatTemplate::formats() {
  using Style = Format::Style;
  using SystemPlace = Format::SystemPlace;
  const auto chatml = [](const char* name, const char* system, bool thinks = false) {
    return Format{.name = name,
                  .style = Style::chatml,
                  .default_system = system,
                  .has_thoughts = thinks,
                  .user_start = "<|im_start|>user\n",
                  .user_end = "<|im_end|>\n",
                  .answer_start = "<|im_start|>assistant\n",
                  .answer_end = "<|im_end|>",
                  .after_answer = "\n"};
  };
  const auto llama3 = [](const char* name, bool dates) {
    return Format{.name = name,
                  .style = Style::llama3,
                  .has_dates = dates,
                  .begin = "<|begin_of_text|>",
                  .user_start = "<|start_header_id|>user<|end_header_id|>\n\n",
                  .user_end = "<|eot_id|>",
                  .answer_start = "<|start_header_id|>assistant<|end_header_id|>\n\n",
                  .answer_end = "<|eot_id|>",
                  .strips = true};
  };
  struct Spaces {
    const char *start, *end, *answer, *after;
  };
  const auto mistral = [](const char* name, SystemPlace system, const Spaces& spaces, bool strips_answers = false) {
    return Format{.name = name,
                  .style = Style::mistral,
                  .system = system,
                  .begin = "<s>",
                  .user_start = spaces.start,
                  .user_end = spaces.end,
                  .answer_start = spaces.answer,
                  .answer_end = "</s>",
                  .after_answer = spaces.after,
                  .strips_answers = strips_answers};
  };
  static const std::vector<Format> all = {
      chatml("chatml", ""),
      chatml("qwen1.5", "You are a helpful assistant"),
      chatml("qwen2", "You are a helpful assistant."),
      chatml("qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
      chatml("qwen3", "", true),
      chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
      {.name = "llama2",
       .style = Style::llama2,
       .system = SystemPlace::first_user,
       .user_start = "<s>[INST] ",
       .user_end = " [/INST]",
       .answer_start = " ",
       .answer_end = " </s>",
       .strips = true},
      llama3("llama3", false),
      llama3("llama3.1", true),
      mistral("mistral-v0.1", SystemPlace::none, {"[INST] ", " [/INST]", "", " "}),
      mistral("mixtral", SystemPlace::none, {"[INST] ", " [/INST]", "", ""}),
      mistral("mistral-v1", SystemPlace::first_user, {" [INST] ", " [/INST]", " ", ""}),
      mistral("mistral-v3", SystemPlace::last_user, {"[INST] ", "[/INST]", " ", ""}, true),
      mistral("mistral-nemo", SystemPlace::last_user, {"[INST]", "[/INST]", "", ""})};
  return all;
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const Format& format : formats()) all.push_back(format.name);
  return all;
}

ChatTemplate::ChatTemplate(std::string_view name) : format_(nullptr) {
  for (const Format& format : formats()) {
    if (format.name == name) format_ = &format;
  }
  check(format_ != nullptr, kChat, unknown_name("chat template", name, names()));
}

ChatTemplate ChatTemplate::of(std::string_view jinja) {
  std::string text;
  for (; !jinja.empty(); jinja.remove_prefix(1)) {
    const bool line = jinja.starts_with("\\n");
    text += line ? '\n' : jinja.front();
    if (line) jinja.remove_prefix(1);
  }
  text.erase(text.find_last_not_of('\n') + 1);
  const std::string sum = files::sha256(std::as_bytes(std::span(text)));
  for (const auto& [sha256, name] : kPublished) {
    if (sha256 == sum) return ChatTemplate(name);
  }
  std::string list;
  for (const std::string& name : names()) list += (list.empty() ? "" : ", ") + name;
  fail_data(kChat, "the chat template of this model is not one of those known (its SHA-256 is ", sum,
            "); choose one by name: ", list);
}

const std::string& ChatTemplate::name() const { return format_->name; }

std::string_view ChatTemplate::answer_end() const {
  return format_->style == Format::Style::llama2 ? std::string_view(format_->answer_end).substr(1)
                                                 : format_->answer_end;
}

std::string ChatTemplate::text(std::span<const ChatMessage> messages, const ChatSettings& settings) const {
  using Style = Format::Style;
  using SystemPlace = Format::SystemPlace;
  const Format& format = *format_;
  const bool alternates = format.style == Style::llama2 || format.style == Style::mistral;
  check(!messages.empty() && messages.back().role == "user", kChat, "the conversation ",
        messages.empty() ? "is empty" : "ends with " + messages.back().role, "; must end with a message of the user");
  const bool has_system = messages.front().role == "system";
  std::string system = has_system ? messages.front().content : format.default_system;
  if (has_system) messages = messages.subspan(1);
  check(!has_system || format.system != SystemPlace::none, kChat, format.name, " has no system message");

  std::string text = format.begin;
  if (format.has_dates) {
    text += format.header("system") + "Cutting Knowledge Date: December 2023\nToday Date: " + settings.date + "\n\n" +
            stripped(system) + "<|eot_id|>";
  } else if (format.system == SystemPlace::own && (has_system || !system.empty())) {
    text += format.header("system") + (format.strips ? stripped(system) : system) + format.user_end;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    const bool user = role == "user";
    check(user || role == "assistant" || role == "system", kChat, "message ", i + has_system, " is from ", role,
          "; must be from system, user or assistant");
    check(!alternates || user == (i % 2 == 0), kChat, "message ", i + has_system, " is from ", role, "; in ",
          format.name, " user and assistant must alternate");
    check(role != "system" || !alternates, kChat, "message ", i + has_system, " is from system; ", format.name,
          " has only one at the start");
    if (role == "system") {
      text += format.header(role) + (format.strips ? stripped(content) : content) + format.user_end;
    } else if (!user) {
      text += format.answer(format.has_thoughts ? without_thoughts(content) : content);
    } else if (has_system && format.style == Style::llama2 && i == 0) {
      text += format.user("<<SYS>>\n" + system + "\n<</SYS>>\n\n" + content);
    } else if (has_system && ((format.system == SystemPlace::first_user && i == 0) ||
                              (format.system == SystemPlace::last_user && i + 1 == messages.size()))) {
      text += format.user(system + "\n\n" + content);
    } else {
      text += format.user(content);
    }
  }
  return text + format.asking(settings);
}

std::string ChatTemplate::next_text(std::string_view user, const ChatSettings& settings) const {
  return format_->after_answer + format_->user(user) + format_->asking(settings);
}

}  // namespace ovq::text
