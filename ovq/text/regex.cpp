#include "ovq/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include "ovq/base/error.h"
#include "ovq/text/tokenizer_format.h"

namespace ovq::text {
namespace {

constexpr size_t kLongestPattern = 1 << 14;
constexpr size_t kFirstStack = 1 << 16, kLargestStack = 1 << 26;
constexpr uint32_t kMatchSteps = 1'000'000, kMatchStepsPerByte = 32;

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a thread needs to match: room for the borders of one match, limits and the JIT compiler's stack.
struct MatchSpace {
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>> stack;

  MatchSpace() {
    if (!data || !context) throw std::bad_alloc();
    stack.reset(pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr));
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct Regex::Code {
  pcre2_code* pattern = nullptr;
  bool jit = false;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(pattern); }
};

Regex::Regex(std::string_view oniguruma) {
  if (oniguruma.empty() || oniguruma.size() > kLongestPattern)
    refuse_format("the pattern has ", oniguruma.size(), " bytes; must have 1 to ", kLongestPattern);
  const std::string translated = translated_pattern(oniguruma);
  const std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t position = 0;
  auto code = std::make_shared<Code>();
  // In Oniguruma's syntax ^ and $ always match at line breaks.
  code->pattern = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &position,
                                context.get());
  if (code->pattern == nullptr) refuse_format("the pattern ", in_quotes(oniguruma), " is not one: ", message_of(error));
  code->jit = pcre2_jit_compile(code->pattern, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from) const {
  static thread_local const MatchSpace space;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(space.context.get(), static_cast<uint32_t>(std::min<size_t>(
                                                 kMatchSteps + kMatchStepsPerByte * text.size(), UINT32_MAX)));
  const int found =
      code_->jit ? pcre2_jit_match(code_->pattern, subject, text.size(), from, 0, space.data.get(), space.context.get())
                 : pcre2_match(code_->pattern, subject, text.size(), from, PCRE2_NO_UTF_CHECK, space.data.get(),
                               space.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) fail("tokenizer", "a pattern gives up on this text after byte ", from, ": ", message_of(found));
  const size_t* borders = pcre2_get_ovector_pointer(space.data.get());
  return Match{borders[0], borders[1]};
}

}  // namespace ovq::text
