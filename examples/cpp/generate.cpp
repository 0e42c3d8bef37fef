// Loads a language model from a directory and continues a prompt, in memory that does not grow with the text.
//
//   generate runs/my-run/checkpoints/step-000720 7 4 1 9 5     a model that `ovq train` made, and token numbers
//   generate                                                   a fresh model of random weights, saved and loaded
#include <ovq/models/generate.h>
#include <ovq/models/presets.h>
#include <ovq/models/weights.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

using namespace ovq::models;

// A directory that holds config.json and model.safetensors.
std::filesystem::path save_fresh_model() {
  std::string directory = (std::filesystem::temp_directory_path() / "ovq-XXXXXX").string();
  if (!mkdtemp(directory.data())) throw std::runtime_error("cannot make " + directory);
  save_model(*make_model(model_preset("tiny/sw-ovq").config, 1), directory);
  return directory;
}

// The logits after the last token: read at once, and one by one from a state.
bool streaming_agrees(LanguageModel& model, const std::vector<int64_t>& tokens) {
  const torch::NoGradGuard no_grad;
  const at::Tensor row = at::tensor(tokens, at::kLong).unsqueeze(0);
  const at::Tensor whole = model.forward(row);
  ModelState state;
  at::Tensor last;
  for (int64_t t = 0; t < row.size(1); ++t) last = model.forward(row.narrow(1, t, 1), state);
  return at::allclose(last.select(1, -1), whole.select(1, -1), 1e-3, 1e-4);
}

int main(int argc, char** argv) try {
  const std::filesystem::path directory = argc > 1 ? argv[1] : save_fresh_model();
  const auto model = load_model(directory);
  model->eval();
  if (argc == 1) std::filesystem::remove_all(directory);

  std::vector<int64_t> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(std::stoll(argv[i]));
  if (tokens.empty()) tokens = {7, 4, 1, 9, 5, 2};

  ModelState state;
  const auto added = generate(*model, state, tokens, {.tokens = 100});
  for (const int64_t token : added) std::printf("%lld ", static_cast<long long>(token));
  std::printf("\n%lld tokens read, %lld bytes of state\n", static_cast<long long>(state.position()),
              static_cast<long long>(state.nbytes()));

  tokens.insert(tokens.end(), added.begin(), added.end());
  const bool agrees = streaming_agrees(*model, tokens);
  std::printf("one by one and at once: %s logits\n", agrees ? "the same" : "other");
  return agrees ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "generate: %s\n", error.what());
  return 1;
}
