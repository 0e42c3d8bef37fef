// An OVQ-attention layer in a LibTorch module of one's own: a small transformer learns to repeat a word, then decodes
// from the states of its layers, which stop growing while the sequence goes on.
#include <ovq/nn/ovq_attention.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace nn = torch::nn;

constexpr int64_t kVocabulary = 16, kWidth = 64, kHeads = 2, kLayers = 2, kPeriod = 6;

struct Block : nn::Module {
  Block() {
    attention = register_module("attention", std::make_shared<ovq::nn::OvqAttention>(ovq::nn::OvqAttentionOptions{
                                                 .heads = {.width = kWidth, .heads = kHeads},
                                                 .dictionary = {.chunk = 16, .centroids = 64, .rope = true}}));
    attention_norm = register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    mlp = register_module(
        "mlp", nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({kWidth})), nn::Linear(kWidth, 4 * kWidth), nn::GELU(),
                              nn::Linear(4 * kWidth, kWidth)));
  }

  std::shared_ptr<ovq::nn::OvqAttention> attention;
  nn::LayerNorm attention_norm{nullptr};
  nn::Sequential mlp{nullptr};
};

struct Transformer : nn::Module {
  Transformer() {
    embedding = register_module("embedding", nn::Embedding(kVocabulary, kWidth));
    for (int64_t i = 0; i < kLayers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    head = register_module("head", nn::Linear(kWidth, kVocabulary));
  }

  // tokens [B, T] -> logits [B, T, vocabulary]
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding(tokens);
    for (const auto& block : blocks) {
      x = x + block->attention->forward(block->attention_norm(x));
      x = x + block->mlp->forward(x);
    }
    return head(x);
  }

  // The same, continuing one state per layer. An empty state represents an empty context.
  at::Tensor step(const at::Tensor& tokens, std::vector<ovq::nn::MixerState>& states) {
    at::Tensor x = embedding(tokens);
    for (size_t i = 0; i < blocks.size(); ++i) {
      x = x + blocks[i]->attention->step(blocks[i]->attention_norm(x), states[i]);
      x = x + blocks[i]->mlp->forward(x);
    }
    return head(x);
  }

  nn::Embedding embedding{nullptr};
  std::vector<std::shared_ptr<Block>> blocks;
  nn::Linear head{nullptr};
};

// Random words of kPeriod tokens, each repeated: [batch, time]
at::Tensor repeated_words(int64_t batch, int64_t time) {
  return at::randint(kVocabulary, {batch, kPeriod}, at::kLong).repeat({1, time / kPeriod + 1}).narrow(1, 0, time);
}

void train(Transformer& model) {
  torch::optim::Adam optimizer(model.parameters(), 3e-3);
  for (int step = 0; step <= 120; ++step) {
    const at::Tensor tokens = repeated_words(8, 129);
    const at::Tensor logits = model.forward(tokens.narrow(1, 0, 128)).slice(1, kPeriod);
    const at::Tensor loss = nn::functional::cross_entropy(logits.flatten(0, 1), tokens.slice(1, kPeriod + 1).flatten());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 20 == 0) std::printf("step %4d  loss %.3f\n", step, loss.item<double>());
  }
}

// Continues a random word by 1000 tokens. Returns how many of them repeat the word.
int64_t decode(Transformer& model) {
  const torch::NoGradGuard no_grad;
  const at::Tensor word = repeated_words(1, kPeriod);
  std::vector<ovq::nn::MixerState> states(kLayers);
  at::Tensor logits = model.step(word.repeat({1, 3}), states);
  int64_t right = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const at::Tensor token = logits.slice(1, -1).argmax(-1);
    right += (token == word.narrow(1, i % kPeriod, 1)).item<bool>();
    logits = model.step(token, states);
  }
  int64_t bytes = 0;
  for (const auto& state : states) bytes += state.nbytes();
  std::printf("position %lld  state %lld bytes  copied %lld of 1000\n", static_cast<long long>(states[0].position),
              static_cast<long long>(bytes), static_cast<long long>(right));
  return right;
}

int main() {
  torch::manual_seed(0);
  Transformer model;
  train(model);
  return decode(model) > 500 ? 0 : 1;
}
