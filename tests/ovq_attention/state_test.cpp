// The state as a value: copies, size, serialisation, and robust readers.
#include "ovq/ops/ovq_attention/state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ovq/core/buffer.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "tests/core/compare.h"
#include "tests/core/fixtures.h"
#include "tests/ovq_attention/fixtures.h"

namespace ovq::kernels::test {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

OvqState read_bytes(const std::string& bytes) {
  std::istringstream in(bytes);
  return OvqState::read(in);
}

OvqCase small_case(const OvqOptions& options, StateDtype dtype = StateDtype::float32) {
  return {.batch = 2,
          .tokens = 61,
          .query_heads = 4,
          .kv_heads = 2,
          .key_dim = 6,
          .value_dim = 3,
          .options = options,
          .dtype = dtype};
}

OvqState state_after(const OvqProblem& problem, int64_t tokens) {
  std::vector<OvqState> states = problem.states();
  run_forward(problem.inputs(0, tokens), states);
  return states[0];
}

TEST(OvqState, StartsEmpty) {
  const OvqState state({2, 3, 16, 8}, {.chunk = 32, .centroids = 100});
  EXPECT_EQ(state.position(), 0);
  EXPECT_EQ(state.size(), 0);
  EXPECT_EQ(state.pending(), 0);
  EXPECT_LE(state.nbytes(), 4096);
}

TEST(OvqState, KnowsItsPosition) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem({.tokens = 61, .options = {.chunk = 8, .centroids = 10, .rope = rope}});
    for (int64_t tokens : {0, 1, 7, 8, 9, 16, 61}) {
      const OvqState state = state_after(problem, tokens);
      const int64_t written = rope ? std::max<int64_t>(tokens / 8 - 1, 0) * 8 : tokens / 8 * 8;
      EXPECT_EQ(state.position(), tokens);
      EXPECT_EQ(state.pending(), tokens - written);
      EXPECT_EQ(state.size(), written == 0 ? 0 : target_size(problem.options, written));
      EXPECT_EQ(state.keys().time, state.size());
      EXPECT_EQ(state.values().time, state.size());
      EXPECT_EQ(state.pending_keys().time, state.pending());
      EXPECT_EQ(state.pending_values().time, state.pending());
      EXPECT_EQ(static_cast<int64_t>(state.counts(0, 0).size()), state.size());
    }
  }
}

// Chunk by chunk, as the kernels write.
int64_t size_by_chunks(const OvqOptions& options, int64_t size, int64_t position, int64_t tokens) {
  const int64_t chunk = options.chunk, lag = options.rope ? chunk : 0;
  for (int64_t end = position - position % chunk + chunk; end <= position + tokens; end += chunk) {
    if (end > lag) size += new_centroid_count(options, size, end - lag);
  }
  return size;
}

TEST(OvqState, SizeAfterManyTokensEqualsThatChunkByChunk) {
  for (const Growth growth : {Growth::plateau, Growth::linear, Growth::all, Growth::square_root}) {
    for (const int64_t chunk : {1, 3, 8, 128}) {
      for (const int64_t centroids : {1, 2, 7, 40, 5000}) {
        for (const int64_t total : {1, 30, 700}) {
          for (const bool rope : {false, true}) {
            const OvqOptions options{
                .chunk = chunk, .centroids = centroids, .growth = growth, .total_tokens = total, .rope = rope};
            // Also sizes below and above the target: the limit may have changed.
            for (const int64_t size : {0, 1, 5, 39, 200}) {
              for (const int64_t position : {0, 1, 8, 127, 300}) {
                for (const int64_t tokens : {0, 1, 2, 7, 8, 9, 128, 511, 2000}) {
                  ASSERT_EQ(size_after(options, size, position, tokens),
                            size_by_chunks(options, size, position, tokens))
                      << chunk << " " << centroids << " " << total << " " << rope << " " << size << " " << position
                      << " " << tokens;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(size_after({.chunk = 4, .centroids = 6}, 0, 0, int64_t{1} << 40), 6);
}

TEST(OvqState, BytesAreKnownBeforehand) {
  for (const auto& [rope, weighted] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    for (const StateDtype dtype : kStateDtypes) {
      const OvqOptions options{.chunk = 8, .centroids = 10, .rope = rope, .weighted = weighted};
      const OvqProblem problem(small_case(options, dtype));
      for (const int64_t tokens : {0, 1, 7, 8, 13, 61}) {
        const OvqState state = state_after(problem, tokens);
        EXPECT_EQ(state.nbytes(), OvqState::nbytes_after(state.shape(), options, tokens, dtype)) << tokens;
        EXPECT_EQ(static_cast<int64_t>(bytes_of(state).size()),
                  OvqState::file_bytes_after(state.shape(), options, tokens, dtype))
            << tokens;
      }
    }
  }
}

TEST(OvqState, HoldsPendingTokensInTheirOriginalForm) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem({.tokens = 61, .options = {.chunk = 8, .centroids = 10, .rope = rope}});
    const OvqState state = state_after(problem, 61);
    const int64_t pending = state.pending();
    EXPECT_TRUE(same_bits(dense(state.pending_keys()), dense(problem.k.slice(61 - pending, pending))));
    EXPECT_TRUE(same_bits(dense(state.pending_values()), dense(problem.v.slice(61 - pending, pending))));
  }
}

// The size depends on the centroids in use and the chunk, not on the context or the limit N.
TEST(OvqState, SizeIsBounded) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem(
        {.tokens = 5000, .key_dim = 16, .value_dim = 32, .options = {.chunk = 16, .centroids = 64, .rope = rope}});
    std::vector<OvqState> states = problem.states();
    const int64_t row_bytes = (16 + 32) * 4 + 8 + 4, window = (rope ? 2 : 1) * 16;
    const int64_t window_bytes = window * ((rope ? 16 * 4 : 0) + 8);
    for (int64_t first = 0; first < 5000; first += 50) {
      run_forward(problem.inputs(first, 50), states);
      EXPECT_LE(states[0].nbytes(), (64 + window) * row_bytes * 5 / 4 + window_bytes + 4096);
    }
  }
  const OvqProblem problem({.tokens = 40, .options = {.chunk = 16, .centroids = int64_t{1} << 40}});
  EXPECT_LE(state_after(problem, 40).nbytes(), 100 * 1024);
}

TEST(OvqState, BytesAreCounted) {
  for (const StateDtype dtype : kStateDtypes) {
    const OvqProblem problem({.tokens = 500, .options = {.chunk = 16, .centroids = 64}, .dtype = dtype});
    const int64_t before = memory_use().current;
    {
      std::vector<OvqState> states = problem.states();
      ovq_attention_forward(problem.inputs(), {.o = Tensor({1, 500, 1, 16}).view(), .lse = {}, .assignments = {}},
                            states);
      EXPECT_EQ(memory_use().current - before, states[0].nbytes());
    }
    EXPECT_EQ(memory_use().current, before);
  }
}

TEST(OvqState, CopiesAreDeep) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    const OvqProblem problem(small_case(options, kStateDtypes[options.rope ? 1 : 0]));
    std::vector<OvqState> states{state_after(problem, 30)};
    const OvqState copy = states[0];
    const std::string bytes = bytes_of(copy);
    run_forward(problem.inputs(30, 31), states);
    EXPECT_EQ(bytes_of(copy), bytes);
    std::vector<OvqState> again{copy};
    run_forward(problem.inputs(30, 31), again);
    expect_same_state(again[0], states[0]);
  }
}

void expect_round_trip(const OvqProblem& problem, int64_t tokens) {
  const OvqState state = state_after(problem, tokens);
  const std::string bytes = bytes_of(state);
  const OvqState loaded = read_bytes(bytes);
  EXPECT_EQ(loaded.shape(), state.shape());
  EXPECT_EQ(loaded.options(), state.options());
  expect_same_state(loaded, state);
  EXPECT_EQ(bytes_of(loaded), bytes);

  std::vector<OvqState> original{state}, reloaded{loaded};
  const OvqForward expected = run_forward(problem.inputs(tokens, 61 - tokens), original);
  const OvqForward actual = run_forward(problem.inputs(tokens, 61 - tokens), reloaded);
  EXPECT_TRUE(same_bits(actual.o.values(), expected.o.values()));
  EXPECT_TRUE(same_bits(actual.assignments, expected.assignments));
  expect_same_state(reloaded[0], original[0]);
}

TEST(OvqState, BytesRoundTrip) {
  for (const OvqOptions& options : option_variants(8, 10)) {
    for (const StateDtype dtype : kStateDtypes) {
      const OvqProblem problem(small_case(options, dtype));
      for (int64_t tokens : {0, 1, 8, 11, 16, 30, 48}) {
        SCOPED_TRACE(testing::Message() << small_case(options, dtype) << ", at " << tokens);
        expect_round_trip(problem, tokens);
      }
    }
  }
}

TEST(OvqState, ReadsOneStateAfterAnother) {
  const OvqProblem problem(small_case({.chunk = 8, .centroids = 10}));
  const OvqState first = state_after(problem, 20), second = state_after(problem, 61);
  std::stringstream stream;
  first.write(stream);
  second.write(stream);
  expect_same_state(OvqState::read(stream), first);
  expect_same_state(OvqState::read(stream), second);
  EXPECT_THROW(OvqState::read(stream), std::runtime_error);
}

TEST(OvqState, WritingToAFullStreamFails) {
  std::ostringstream out;
  out.setstate(std::ios::failbit);
  EXPECT_THROW(state_after(OvqProblem({.options = {.chunk = 8}}), 20).write(out), std::runtime_error);
}

TEST(OvqState, ContinuesAfterForcedAssignmentsOfPartOfAChunk) {
  for (const bool rope : {false, true}) {
    const OvqProblem problem({.tokens = 60, .options = {.chunk = 8, .centroids = 10, .rope = rope}});
    std::vector<OvqState> expected{problem.states()}, states{problem.states()};
    run_forward(problem.inputs(0, 60), expected);
    const std::vector<int32_t> assignments = run_forward(problem.inputs(0, 30)).assignments;
    run_forward(problem.inputs(0, 30), states, assignments);
    states[0] = read_bytes(bytes_of(states[0]));
    run_forward(problem.inputs(30, 30), states);
    expect_same_state(states[0], expected[0]);
  }
}

// The result of `read`: an error, or a state that works; and the peak memory.
struct ReadOutcome {
  bool accepted = false;
  std::string error;  // what() of the runtime_error
  int64_t peak = 0;
};

ReadOutcome try_read(const std::string& bytes) {
  reset_peak_memory();
  const int64_t before = memory_use().current;
  ReadOutcome outcome;
  try {
    const OvqState state = read_bytes(bytes);
    outcome.accepted = true;
  } catch (const std::runtime_error& error) {
    outcome.error = error.what();
  }
  outcome.peak = memory_use().peak - before;
  return outcome;
}

// Files of small states: plain, with rope, with weights, and stored as bfloat16.
std::vector<std::string> small_files() {
  std::vector<std::string> files;
  for (const auto& [rope, weighted] : {std::pair{false, false}, {true, false}, {true, true}}) {
    const OvqOptions options{.chunk = 8, .centroids = 10, .rope = rope, .weighted = weighted};
    files.push_back(bytes_of(state_after(OvqProblem(small_case(options)), 27)));
  }
  const OvqOptions weighted{.chunk = 8, .centroids = 10, .weighted = true};
  files.push_back(bytes_of(state_after(OvqProblem(small_case(weighted, StateDtype::bfloat16)), 27)));
  return files;
}

TEST(OvqStateFile, EveryTruncationIsAnError) {
  for (const std::string& bytes : small_files()) {
    for (size_t length = 0; length < bytes.size(); ++length) {
      const ReadOutcome outcome = try_read(bytes.substr(0, length));
      ASSERT_FALSE(outcome.accepted) << "the first " << length << " bytes";
      ASSERT_FALSE(outcome.error.empty());
    }
  }
}

TEST(OvqStateFile, EveryFlippedByteIsAnError) {
  for (const std::string& bytes : small_files()) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string flipped = bytes;
        flipped[at] = static_cast<char>(flipped[at] ^ flip);
        const ReadOutcome outcome = try_read(flipped);
        ASSERT_FALSE(outcome.accepted) << "byte " << at << " ^ " << flip;
        ASSERT_LE(outcome.peak, 4 * kMegabyte) << "byte " << at << " ^ " << flip;
      }
    }
  }
}

// The offsets of the header's fields in the format of ovq_state_io.cpp.
constexpr size_t kShapeAt = 12, kOptionsAt = 44, kChunkAt = 44, kRopeAt = 108, kPositionAt = 124, kSizeAt = 132;
constexpr size_t kHeaderBytes = 140;

template <class T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// Adds a valid checksum.
std::string sealed(std::string bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i + 8 < bytes.size(); ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3u;
  put(bytes, bytes.size() - 8, hash);
  return bytes;
}

std::string file_of(const OvqOptions& options, int64_t tokens, StateDtype dtype = StateDtype::float32) {
  return bytes_of(state_after(
      OvqProblem({.tokens = tokens, .key_dim = 2, .value_dim = 2, .options = options, .dtype = dtype}), tokens));
}

TEST(OvqStateFile, SealIsTheChecksum) {
  const std::string bytes = file_of({.chunk = 8, .centroids = 10}, 27);
  EXPECT_EQ(sealed(bytes), bytes);
}

// Any field of the header set by an attacker, with a valid checksum: an error or a small state.
TEST(OvqStateFile, HostileHeadersAllocateNothing) {
  const int64_t values[] = {-1,
                            0,
                            1,
                            2,
                            3,
                            7,
                            9,
                            1 << 20,
                            1 << 23,
                            int64_t{1} << 31,
                            int64_t{1} << 62,
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()};
  struct Kind {
    bool rope, weighted;
    StateDtype dtype = StateDtype::float32;
  };
  for (const auto& [rope, weighted, dtype] :
       {Kind{false, false}, Kind{true, false}, Kind{false, true}, Kind{true, true, StateDtype::bfloat16}}) {
    for (const int64_t tokens : {0, 3, 27}) {
      const OvqOptions options{.chunk = 8, .centroids = 10, .rope = rope, .weighted = weighted};
      const std::string bytes = file_of(options, tokens, dtype);
      const size_t header = kHeaderBytes + (dtype == StateDtype::bfloat16 ? 16 : 0);
      for (size_t at = kShapeAt; at < header; at += 8) {
        for (int64_t value : values) {
          std::string hostile = bytes;
          put(hostile, at, value);
          EXPECT_LE(try_read(sealed(hostile)).peak, 4 * kMegabyte) << value << " at byte " << at << ", rope " << rope;
        }
      }
    }
  }
}

// Programs without weights can read states without weights, and programs without bfloat16 can read float32 states.
TEST(OvqStateFile, VersionIsTheOldestThatCanHoldTheState) {
  for (const bool rope : {false, true}) {
    EXPECT_EQ(file_of({.chunk = 8, .centroids = 10, .rope = rope}, 27)[8], 1);
    EXPECT_EQ(file_of({.chunk = 8, .centroids = 10, .rope = rope, .weighted = true}, 27)[8], 2);
    for (const bool weighted : {false, true}) {
      const OvqOptions options{.chunk = 8, .centroids = 10, .rope = rope, .weighted = weighted};
      EXPECT_EQ(file_of(options, 27, StateDtype::bfloat16)[8], 3);
    }
  }
}

TEST(OvqStateFile, BadStorageIsAnError) {
  const std::string bytes = file_of({.chunk = 8, .centroids = 10}, 27, StateDtype::bfloat16);
  ASSERT_TRUE(try_read(sealed(bytes)).accepted);
  for (const size_t field : {0, 1}) {
    for (const int64_t value : {-1, 2, 1000}) {
      std::string bad = bytes;
      put(bad, kOptionsAt + 8 * field, value);
      EXPECT_NE(try_read(sealed(bad)).error.find(field == 0 ? "weighted" : "dtype"), std::string::npos) << value;
    }
  }
}

TEST(OvqStateFile, BadWeightsAreErrors) {
  const std::string bytes = file_of({.chunk = 8, .centroids = 10, .weighted = true}, 27);
  ASSERT_TRUE(try_read(sealed(bytes)).accepted);
  const size_t weights_at = kHeaderBytes + (7 + 3) * 2 * 2 * sizeof(float);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const size_t row : {0, 6, 7, 9}) {  // centroids and pending tokens
    for (const float weight : {0.0f, -1.0f, nan, infinity}) {
      std::string bad = bytes;
      put(bad, weights_at + row * sizeof(float), weight);
      EXPECT_NE(try_read(sealed(bad)).error.find("weight"), std::string::npos) << row << ", " << weight;
    }
  }
}

// Chunks so long that their capacity exceeds the file by far.
TEST(OvqStateFile, HostileChunksAllocateNothing) {
  for (const int64_t chunk : {int64_t{1} << 20, int64_t{1} << 22}) {
    for (const int64_t rope : {0, 1}) {
      // One pending token of a very long chunk.
      std::string pending = file_of({.chunk = 8, .centroids = 10, .rope = rope == 1}, 1);
      put(pending, kChunkAt, chunk);
      EXPECT_LE(try_read(sealed(pending)).peak, 4 * kMegabyte) << "chunk " << chunk << ", rope " << rope;
    }
    // One centroid that took all tokens of a very long chunk; none is pending.
    std::string written = file_of({.chunk = 1, .centroids = 1}, 1);
    put(written, kChunkAt, chunk);
    put(written, kPositionAt, chunk);
    const size_t counts_at = kHeaderBytes + 2 * 2 * sizeof(float);
    put(written, counts_at, chunk);
    EXPECT_LE(try_read(sealed(written)).peak, 4 * kMegabyte) << "chunk " << chunk;
  }
}

TEST(OvqStateFile, BadFieldsAreErrorsBehindARightChecksum) {
  const std::string bytes = file_of({.chunk = 8, .centroids = 10}, 27);
  ASSERT_TRUE(try_read(sealed(bytes)).accepted);
  const auto rejected = [&](size_t at, auto value) {
    std::string bad = bytes;
    put(bad, at, value);
    const ReadOutcome outcome = try_read(sealed(bad));
    return outcome.accepted ? testing::AssertionFailure() << value << " at byte " << at << " was accepted"
                            : testing::AssertionSuccess();
  };
  for (const uint32_t version : {0, 2, 3, 4}) EXPECT_TRUE(rejected(8, version));
  for (size_t field = 0; field < 4; ++field) {
    for (int64_t value : {int64_t{-1}, int64_t{77}, int64_t{1} << 40})
      EXPECT_TRUE(rejected(kShapeAt + 8 * field, value));
  }
  EXPECT_TRUE(rejected(kOptionsAt, int64_t{0}));
  EXPECT_TRUE(rejected(kOptionsAt + 8, int64_t{0}));
  EXPECT_TRUE(rejected(kOptionsAt + 16, int64_t{4}));
  EXPECT_TRUE(rejected(kOptionsAt + 32, int64_t{2}));
  EXPECT_TRUE(rejected(kRopeAt, int64_t{2}));
  for (int64_t value : {-1, 1000}) {
    EXPECT_TRUE(rejected(kPositionAt, value));
    EXPECT_TRUE(rejected(kSizeAt, value));
  }
  const size_t counts_at = kHeaderBytes + (7 + 3) * 2 * 2 * sizeof(float);
  for (int64_t value : {int64_t{0}, int64_t{-1}, int64_t{23}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_TRUE(rejected(counts_at, value));
  }
  const size_t centroids_at = bytes.size() - 8 - 3 * sizeof(int32_t);
  for (int32_t value : {-1, 7, std::numeric_limits<int32_t>::max()}) EXPECT_TRUE(rejected(centroids_at, value));
}

}  // namespace
}  // namespace ovq::kernels::test
