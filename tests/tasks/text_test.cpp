#include "ovq/tasks/text.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ovq/tasks/registry.h"
#include "tests/tasks/fixtures.h"
#include "tests/text/sentencepiece_model.h"

namespace ovq::tasks {
namespace {

using test::error_of;
using test::row_of;

// `size` letters that differ in every window of five, upper or lower case by document.
std::string document(size_t size, char first) {
  std::string text;
  for (size_t i = 0; text.size() < size; ++i) {
    std::string number(4, first);
    for (size_t digit = 0, value = i; digit < 4; ++digit, value /= 20)
      number[3 - digit] = static_cast<char>(first + 1 + value % 20);
    text += static_cast<char>(first) + number;
  }
  return text.substr(0, size);
}

class Text : public testing::Test {
 protected:
  Text() {
    folder_.write("train/b.txt", document(400, 'a'));
    folder_.write("train/a.txt", document(300, 'A'));
    folder_.write("train/short.txt", "too short");
    folder_.write("train/notes.md", "not a document");
    folder_.write("valid/c.txt", document(101, '!'));
    folder_.write("valid/d.txt", document(70, '!') + "end");
  }

  TextOptions options(int64_t min_document) const {
    return {.train = folder_.path("train"), .test = folder_.path("valid"), .min_document = min_document, .bin = 8};
  }

  std::string text(const Batch& batch, int64_t row, const TextTask& task) const {
    const auto tokens = row_of(batch, batch.tokens, row);
    return task.tokenizer()->decode({tokens.begin(), tokens.end()}) +
           task.tokenizer()->decode({row_of(batch, batch.targets, row).back()});
  }

  test::Folder folder_;
};

TEST_F(Text, ReadsTheFolderInOrderAndLeavesOutShortDocuments) {
  const TextTask task(options(20));
  const auto& documents = task.corpus(Split::train).documents();
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].path, folder_.path("train/a.txt"));
  EXPECT_EQ(documents[0].tokens, 300);
  EXPECT_EQ(documents[1].tokens, 400);
  EXPECT_EQ(TextTask(options(0)).corpus(Split::train).documents().size(), 3u);
  const TextTask longer({.train = folder_.path("train"), .min_document = 301});
  EXPECT_EQ(longer.corpus(Split::train).documents().size(), 1u);
  EXPECT_EQ(task.corpus(Split::train).tokens(), 700);
}

TEST_F(Text, WindowsComeFromOneDocumentAndEveryNextTokenIsAsked) {
  const TextTask task(options(20));
  const SampleRequest request{.rows = 40, .length = 50};
  const Batch batch = task.sample(request);
  EXPECT_EQ(test::expect_sound(task, request, batch), 40 * 50);
  test::expect_shifted(batch);
  const std::string a = document(300, 'A'), b = document(400, 'a');
  for (int64_t row = 0; row < 40; ++row) {
    const std::string window = text(batch, row, task);
    EXPECT_EQ(window.size(), 51u);
    EXPECT_TRUE(a.find(window) != std::string::npos || b.find(window) != std::string::npos) << window;
    const auto groups = row_of(batch, batch.groups, row);
    for (size_t i = 0; i < groups.size(); ++i) EXPECT_EQ(groups[i], static_cast<int32_t>(i / 8));
  }
}

TEST_F(Text, EveryStartIsAsLikely) {
  const TextTask task(options(20));
  const Batch batch = task.sample({.rows = 20000, .length = 290});  // 10 starts in a, 110 in b
  std::map<std::string, int> starts;
  for (int64_t row = 0; row < batch.rows; ++row) ++starts[text(batch, row, task)];
  EXPECT_EQ(starts.size(), 120u);
  for (const auto& [window, count] : starts) EXPECT_NEAR(count, 167, 65);
}

TEST_F(Text, IsAFunctionOfTheRequest) {
  const TextTask task(options(20));
  const SampleRequest request{.rows = 8, .length = 30, .seed = 3, .step = 4};
  EXPECT_TRUE(test::equal(task.sample(request), TextTask(options(20)).sample(request)));
  SampleRequest seed = request, step = request;
  ++seed.seed;
  ++step.step;
  for (const SampleRequest& other : {seed, step}) {
    EXPECT_NE(task.sample(request).tokens, task.sample(other).tokens);
  }
}

TEST_F(Text, TestWindowsLieSideBySide) {
  const TextTask task(options(20));
  EXPECT_EQ(task.test_rows(20), 8);  // 5 of 101, 3 of 73
  EXPECT_EQ(task.test_rows(100), 1);
  std::vector<std::string> windows;
  for (int64_t step = 0; step < 4; ++step) {
    const Batch batch = task.sample({.rows = 3, .length = 20, .seed = 9, .step = step, .split = Split::test});
    for (int64_t row = 0; row < 3; ++row) windows.push_back(text(batch, row, task));
  }
  const std::string c = document(101, '!'), d = document(70, '!') + "end";
  std::set<std::string> expected;
  for (size_t i = 0; i < 5; ++i) expected.insert(c.substr(20 * i, 21));
  for (size_t i = 0; i < 3; ++i) expected.insert(d.substr(20 * i, 21));
  EXPECT_EQ(std::set(windows.begin(), windows.begin() + 8), expected);
  for (size_t i = 8; i < 12; ++i) EXPECT_EQ(windows[i], windows[i - 8]);
}

TEST_F(Text, TheFirstTestWindowsAreSpreadOverTheText) {
  for (const int documents : {2, 7, 12, 30}) {
    test::Folder folder;
    for (int i = 0; i < documents; ++i)
      folder.write("document" + std::to_string(10 + i) + ".txt", std::string(301, static_cast<char>('A' + i)));
    const TextTask task({.train = folder_.path("train"), .test = folder.path("")});
    ASSERT_EQ(task.test_rows(20), 15 * documents);
    const Batch batch = task.sample({.rows = 3 * documents, .length = 20, .split = Split::test});
    std::map<char, int> windows;
    for (int64_t row = 0; row < batch.rows; ++row) ++windows[text(batch, row, task).front()];
    EXPECT_EQ(windows.size(), static_cast<size_t>(documents));
    for (const auto& [document, count] : windows) EXPECT_LE(count, 5) << document << " of " << documents;
  }
}

TEST_F(Text, OneFileIsOneDocument) {
  const TextTask task({.train = folder_.path("train/a.txt")});
  EXPECT_EQ(task.corpus(Split::train).documents().size(), 1u);
  EXPECT_EQ(text(task.sample({.length = 299}), 0, task), document(300, 'A'));
}

TEST_F(Text, SentencePieceWindowsDecodeToTheirText) {
  TextOptions pieces = options(20);
  pieces.tokenizer = ovq::test::train_sentencepiece(folder_);
  const TextTask task(pieces);
  EXPECT_EQ(task.vocab(), ovq::test::kModelVocab);
  const Corpus& corpus = task.corpus(Split::train);
  std::vector<int32_t> tokens(static_cast<size_t>(corpus.documents()[0].tokens));
  corpus.read(corpus.documents()[0], 0, tokens);
  EXPECT_EQ(tokens.front(), task.tokenizer()->begin_token());
  EXPECT_EQ(tokens.back(), task.tokenizer()->end_token());
  EXPECT_EQ(task.tokenizer()->decode(tokens), document(300, 'A'));
  const SampleRequest request{.rows = 4, .length = 40};
  test::expect_sound(task, request, task.sample(request));
}

// Tokens of up to 300 and up to 70,000 take two and four bytes.
class FixedTokenizer final : public text::Tokenizer {
 public:
  explicit FixedTokenizer(int32_t vocab) : vocab_(vocab) {}
  int64_t vocab() const override { return vocab_; }
  std::vector<int32_t> encode(std::string_view, text::Place) const override { return {0, 1, 255, vocab_ - 1}; }
  std::string decode(const std::vector<int32_t>&) const override { return ""; }
  std::string token_name(int32_t) const override { return ""; }
  std::string token_bytes(int32_t) const override { return ""; }

 private:
  int32_t vocab_;
};

TEST_F(Text, StoresTokensOfEverySize) {
  for (int32_t vocab : {256, 257, 65536, 65537, 1 << 30}) {
    const Corpus corpus(folder_.path("train/a.txt"), FixedTokenizer(vocab), 0);
    std::vector<int32_t> tokens(3);
    corpus.read(corpus.documents()[0], 1, tokens);
    EXPECT_EQ(tokens, (std::vector<int32_t>{1, 255, vocab - 1}));
  }
}

TEST_F(Text, IsReadOnceAndWhenFirstAskedFor) {
  const std::string vanished = folder_.path("gone");
  const TextTask none({.train = vanished, .test = vanished + "-too"});
  EXPECT_EQ(none.vocab(), 256);
  EXPECT_EQ(none.metric(), Metric::cross_entropy);
  EXPECT_NE(error_of([&] { none.sample({.length = 4}); }), "");

  const TextTask task(options(20));
  std::filesystem::remove_all(folder_.path("valid"));
  const Batch before = task.sample({.length = 30});  // needs no test corpus
  std::filesystem::remove_all(folder_.path("train"));
  EXPECT_TRUE(test::equal(task.sample({.length = 30}), before));
  EXPECT_NE(error_of([&] { task.test_rows(30); }), "");
}

TEST_F(Text, BadInput) {
  const auto error = [](const TextOptions& options) {
    return error_of([&] { TextTask(options).corpus(Split::train); });
  };
  const std::string none = folder_.path("none");
  EXPECT_EQ(error({}), "[text] needs train or test; expected a text file or a folder of .txt files");
  EXPECT_EQ(error({.train = none}),
            "[text] " + none + " does not exist; expected a text file or a folder of .txt files");
  const std::string empty = folder_.write("empty/x.txt", "");
  EXPECT_EQ(error({.train = folder_.path("empty")}), "[text] " + empty + " is empty");
  folder_.write("other/x.md", "text");
  EXPECT_EQ(error({.train = folder_.path("other")}), "[text] " + folder_.path("other") + " has no .txt files");
  EXPECT_EQ(error(options(401)),
            "[text] " + folder_.path("train") + " has no document of at least 401 tokens; the longest of 3 has 400");
  EXPECT_EQ(error({.train = folder_.path("train"), .test = folder_.path("train") + "/"}),
            "[text] train and test are both " + folder_.path("train") + "; test must be different text");
  EXPECT_EQ(error({.train = folder_.path("train"), .bin = 0}), "[text] bin is 0; must be at least 1");
  EXPECT_EQ(error({.train = folder_.path("train"), .min_document = -1}),
            "[text] min_document is -1; must not be negative");

  const TextTask task({.train = folder_.path("train")});
  EXPECT_EQ(error_of([&] { task.sample({.length = 400}); }),
            "[text] " + folder_.path("train") + " has no document of at least 401 tokens; the longest of 3 has 400");
  EXPECT_EQ(error_of([&] { task.sample({.length = 4, .split = Split::test}); }),
            "[text] test is not set; expected a text file or a folder of .txt files");
  EXPECT_EQ(error_of([&] {
              make_task("text", {{"train", none}})->sample({.length = 4});
            }),
            "[text] " + none + " does not exist; expected a text file or a folder of .txt files");
}

}  // namespace
}  // namespace ovq::tasks
