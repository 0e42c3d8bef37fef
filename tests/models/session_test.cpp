// Sessions: tokens and text, their files, undoing turns.
#include "ovq/models/session.h"

#include <fstream>
#include <iterator>

#include "ovq/models/chat.h"
#include "ovq/models/inspect.h"
#include "ovq/models/presets.h"
#include "ovq/models/state_file.h"
#include "ovq/models/weights.h"
#include "tests/models/fixtures.h"

namespace ovq::models::test {
namespace {

TextModel byte_model(const std::string& pattern = "sw-ovq", uint64_t seed = 1) {
  ModelConfig config = model_preset("tiny/" + pattern).config;
  config.layers = 2;
  config.vocab_size = 256;
  config.set_centroids(32);
  return {.model = make_model(config, seed), .tokenizer = text::make_byte_tokenizer()};
}

// 3,000 bytes without repeated stretches.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 3000; ++i) text += "line " + std::to_string(i * i) + " of many\n";
  return text;
}

std::string written(TextSession& session, int64_t tokens, WriteOptions options = {}) {
  std::string text;
  options.generate.tokens = tokens;
  options.each = [&, each = options.each](const WrittenToken& token) {
    text += token.text;
    return !each || each(token);
  };
  session.write(options);
  return text;
}

const WriteOptions kFree = {.generate = {.sampling = {.temperature = 1, .repetition_penalty = 1.2, .seed = 3}}};

class Sessions : public ScratchDirectory {
 protected:
  std::filesystem::path file() const { return directory / "state.ovq"; }

  std::string content() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
};

// A session saved before the first new token or between any two continues the text as if never interrupted.
TEST_F(Sessions, GoOnFromAFileTokenForToken) {
  for (const char* pattern : {"sw-ovq", "sw-nope", "gdn-ovq", "ovq-rope", "sw-vq"}) {
    SCOPED_TRACE(pattern);
    TextSession whole(byte_model(pattern));
    whole.read(long_text());
    const std::string expected = written(whole, 60, kFree);
    for (const int64_t before : {0, 1, 25}) {
      TextSession first(byte_model(pattern));
      first.read(long_text());
      std::string text = written(first, before, kFree);
      first.save(file());
      TextSession second(byte_model(pattern));
      second.load(file());
      EXPECT_EQ(second.position(), 3000 + static_cast<int64_t>(long_text().size() - 3000) + before);
      EXPECT_EQ(text + written(second, 60 - before, kFree), expected) << before;
      // and the first is not disturbed by having been saved
      EXPECT_EQ(text + written(first, 60 - before, kFree), expected) << before;
    }
  }
}

TEST_F(Sessions, FilesAreAsLargeAsInspectSays) {
  for (const char* pattern : {"sw-ovq", "std-att", "gdn", "ovq-rope", "gdn-ovq"}) {
    const TextModel model = byte_model(pattern);
    TextSession session(model);
    session.read(long_text());
    session.save(file());
    const Inspection inspection = inspect(model.model->config(), {session.position()});
    const auto size = static_cast<double>(std::filesystem::file_size(file()));
    // The header is added: its size does not grow with that of the state, which is tiny here.
    EXPECT_NEAR(size, static_cast<double>(inspection.contexts[0].saved_bytes), 4096) << pattern;
    EXPECT_GE(size, static_cast<double>(inspection.contexts[0].saved_bytes)) << pattern;
  }
}

TEST_F(Sessions, ForeignAndDamagedFilesAreErrors) {
  const TextModel model = byte_model();
  TextSession session(model);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { session.save(file()); }),
            "[session] nothing has been read; there is no state to save");
  session.read("some text");
  session.save(file());
  const std::string before = written(session, 5);
  const auto error = [&](const TextModel& other) {
    TextSession fresh(other);
    return message_of<std::runtime_error>([&] { fresh.load(file()); });
  };
  EXPECT_EQ(error(model), "nothing thrown");
  EXPECT_TRUE(error(byte_model("sw-ovq", 2)).starts_with(file().string() + " is the state of another model, "));
  EXPECT_TRUE(error(byte_model("gdn")).starts_with(file().string() + " is the state of another model, "));
  model.model->set_centroids(99);  // may change
  EXPECT_EQ(error(model), "nothing thrown");

  const std::string sound = content();
  for (size_t at = 0; at < sound.size(); at += 1 + sound.size() / 97) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(file(), std::ios::binary) << damaged;
    EXPECT_NE(error(model), "nothing thrown") << "byte " << at;
  }
  std::ofstream(file(), std::ios::binary) << sound.substr(0, sound.size() / 2);
  EXPECT_NE(error(model), "nothing thrown");
  std::ofstream(file(), std::ios::binary) << "something else";
  EXPECT_NE(error(model), "nothing thrown");
  ModelState state;
  model.model->forward(at::zeros({1, 4}, at::kLong), state);
  state.save(file());
  EXPECT_EQ(error(model), file().string() + " is not the state of a session");
  std::filesystem::remove(file());
  EXPECT_NE(error(model), "nothing thrown");
  EXPECT_EQ(written(session, 5).size() > 0, true);  // a refused file changes nothing
}

TEST_F(Sessions, AModelsDirectoryHasItsTokenizer) {
  const TextModel model = byte_model();
  save_model(*model.model, directory);
  const auto error = [&](const std::string& tokenizer) {
    return message_of<std::runtime_error>([&] { load_text_model(directory, tokenizer); });
  };
  EXPECT_EQ(error(""),
            "[model] " + directory.string() + " has no tokenizer: neither tokenizer.model nor tokenizer.bytes");
  EXPECT_EQ(error("bytes"), "nothing thrown");
  text::save_tokenizer(*model.tokenizer, directory.string());
  EXPECT_EQ(error(""), "nothing thrown");
  ModelConfig config = model.model->config();
  config.vocab_size = 100;
  save_model(*make_model(config, 1), directory);
  EXPECT_EQ(error(""), "[model] the tokenizer has 256 tokens; " + directory.string() + " has 100");
}

TEST(TextSessions, NothingReadIsAnError) {
  TextSession session(byte_model());
  EXPECT_EQ(session.read(""), 0);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { session.write({}); }),
            "[generate] the prompt is empty, and the tokenizer has no token that begins a text");
}

TEST(TextSessions, EndAtStopStringsAndOnDemand) {
  TextSession session(byte_model());
  session.read(long_text());
  const TextSession::Mark mark = session.mark();
  const std::string text = written(session, 40, kFree);
  session.return_to(mark);
  // A string that spans tokens, which are bytes.
  WriteOptions options = kFree;
  const std::string stop = text.substr(10, 6);
  options.stops = {stop};
  EXPECT_EQ(written(session, 40, options), text.substr(0, text.find(stop)));
  session.return_to(mark);
  int seen = 0;
  options = kFree;
  options.each = [&](const WrittenToken&) { return ++seen < 7; };
  options.generate.tokens = 40;
  const Written ended = session.write(options);
  EXPECT_EQ(ended.end, WritingEnd::interrupted);
  EXPECT_EQ(ended.tokens, 7);
  EXPECT_EQ(session.position(), static_cast<int64_t>(long_text().size()) + 7);
  // Text held back as a possible stop string is not lost.
  session.return_to(mark);
  const std::string seven = written(session, 7, kFree);
  session.return_to(mark);
  std::string shown;
  seen = 0;
  options.stops = {text.substr(4, 30)};
  options.each = [&](const WrittenToken& token) {
    shown += token.text;
    return ++seen < 7;
  };
  const Written interrupted = session.write(options);
  EXPECT_LT(shown.size(), seven.size());
  EXPECT_EQ(shown + interrupted.rest, seven);
}

TEST(TextSessions, LogProbabilitiesAreThoseOfTheChoice) {
  TextSession session(byte_model());
  session.read("abc");
  WriteOptions options;
  options.log_probabilities = true;
  options.generate.tokens = 3;
  options.each = [&](const WrittenToken& token) {
    EXPECT_LT(token.log_probability, 0);
    EXPECT_GT(token.log_probability, -std::log(256.0));  // the most likely of 256
    return true;
  };
  EXPECT_EQ(session.write(options).tokens, 3);
}

// Marks share whatever the session has not written to since.
TEST(Chats, TurnsAreTakenBack) {
  for (const char* pattern : {"sw-ovq", "sw-nope", "gdn-ovq"}) {
    Chat chat(byte_model(pattern), {.undo = 2});
    WriteOptions options = kFree;
    options.generate.tokens = 12;
    const auto say = [&](const std::string& line) {
      std::string text;
      options.each = [&](const WrittenToken& token) {
        text += token.text;
        return true;
      };
      chat.say(line, {}, options);
      return text;
    };
    say("first");
    const int64_t position = chat.session().position();
    const std::string second = say("second"), third = say("third");
    EXPECT_TRUE(chat.undo());
    EXPECT_EQ(say("third"), third) << pattern;
    EXPECT_TRUE(chat.undo());
    EXPECT_TRUE(chat.undo());
    EXPECT_EQ(chat.session().position(), position);
    EXPECT_EQ(say("second"), second) << pattern;
    EXPECT_TRUE(chat.undo());
    EXPECT_FALSE(chat.undo());  // only two are kept
    chat.reset();
    EXPECT_EQ(chat.session().position(), 0);
    EXPECT_TRUE(chat.undo());
    EXPECT_EQ(chat.session().position(), position);
  }
}

// A snapshot shares dictionaries until something is read.
TEST(Snapshots, ShareDictionariesUntilOneIsWrittenTo) {
  const TextModel model = byte_model("ovq-rope");
  ModelState state;
  const torch::NoGradGuard no_grad;
  model.model->forward(at::arange(200).unsqueeze(0), state);
  const ModelState snapshot = state.snapshot();
  EXPECT_EQ(state.layers[0].ovq->kernel().get(), snapshot.layers[0].ovq->kernel().get());
  const Tensor counts = snapshot.layers[0].ovq->counts();
  model.model->step(at::arange(100).unsqueeze(0), state);
  EXPECT_NE(state.layers[0].ovq->kernel().get(), snapshot.layers[0].ovq->kernel().get());
  EXPECT_TRUE(at::equal(snapshot.layers[0].ovq->counts(), counts));
  EXPECT_EQ(snapshot.position(), 200);
}

}  // namespace
}  // namespace ovq::models::test
