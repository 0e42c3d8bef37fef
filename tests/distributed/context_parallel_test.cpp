// Two processes with half of the sequence each compute the same as one process, forward and backward.
#include "ovq/distributed/context_parallel.h"

#include <gtest/gtest.h>

#include "ovq/experiments/child_process.h"
#include "ovq/ops/ovq_attention/torch.h"

namespace ovq::distributed::test {
namespace {

using at::Tensor;

constexpr int64_t kLayers = 3, kMicroBatches = 2, kBatch = 2, kTime = 101, kHeads = 2, kDim = 16;
constexpr int64_t kWidth = kHeads * kDim;
constexpr double kTolerance = 1e-5;
// In beta's gradient the terms of all tokens cancel. Over three compilers and five kinds of BLAS kernels its error was
// at most 1.1e-5, that of all other gradients 1.6e-6.
constexpr double kBetaTolerance = 5e-5;

struct Weights {
  std::vector<Tensor> q, k, v;  // a projection per layer
  Tensor beta;

  std::vector<Tensor> all() const {
    std::vector<Tensor> list = {beta};
    for (const auto* one : {&q, &k, &v}) list.insert(list.end(), one->begin(), one->end());
    return list;
  }
};

Weights make_weights() {
  auto generator = at::detail::createCPUGenerator(3);
  const auto projection = [&] { return at::randn({kWidth, kWidth}, generator).div_(6).requires_grad_(); };
  Weights weights{.beta = at::full({kHeads}, 4.0).requires_grad_()};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    weights.q.push_back(projection());
    weights.k.push_back(projection());
    weights.v.push_back(projection());
  }
  return weights;
}

// One product per token. A product of all tokens at once would round differently for a piece than for the whole
// sequence with some BLAS kernels, and a differently rounded key can choose another centroid.
Tensor project(const Tensor& x, const Tensor& projection) {
  const int64_t tokens = x.size(0) * x.size(1);
  return at::bmm(x.reshape({tokens, 1, kWidth}), projection.expand({tokens, kWidth, kWidth}));
}

// Layers x + attend(q, k, v); `attend` is parallel or not.
template <class Attend>
Tensor run_layers(const Weights& weights, Tensor x, Attend&& attend) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const auto heads = [&](const Tensor& projection) {
      return project(x, projection).view({x.size(0), x.size(1), kHeads, kDim});
    };
    x = x + attend(heads(weights.q[layer]), heads(weights.k[layer]), heads(weights.v[layer])).flatten(2);
  }
  return x;
}

Tensor sample(int64_t seed) { return at::randn({kBatch, kTime, kWidth}, at::detail::createCPUGenerator(seed)); }

void expect_near(const Tensor& actual, const Tensor& expected, const std::string& name, double tolerance = kTolerance) {
  ASSERT_TRUE(actual.defined()) << name;
  const double error = (actual - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * std::max(1.0, expected.abs().max().item<double>())) << name;
}

// The error of a piece's gradients if no state is passed on.
double difference_alone(const Tensor& piece, const Tensor& weight, const Tensor& expected,
                        const kernels::OvqOptions& options) {
  const Weights weights = make_weights();
  const Tensor alone = piece.detach().clone().requires_grad_();
  const Tensor o = run_layers(weights, alone, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    return ops::ovq_attention(q, k, v, weights.beta, options);
  });
  (o * weight).sum().backward();
  return (alone.grad() - expected).abs().max().item<double>();
}

// The work of each rank: its piece of all micro-batches forward, then all of them backward.
void check_piece(const Place& place, int64_t border) {
  const auto group = std::make_shared<ProcessGroup>(place, std::chrono::seconds(60));
  const int64_t first = place.rank == 0 ? 0 : border, length = place.rank == 0 ? border : kTime - border;
  const kernels::OvqOptions options{.chunk = 8, .centroids = 24};
  ContextParallel parallel(group);
  const Weights whole = make_weights(), own = make_weights();
  std::vector<Tensor> inputs, outputs, whole_inputs;
  for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
    const Tensor all = sample(10 + micro).requires_grad_();
    const Tensor expected = run_layers(whole, all, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::ovq_attention(q, k, v, whole.beta, options);
    });
    (expected * sample(20 + micro)).sum().backward();
    whole_inputs.push_back(all);
    inputs.push_back(all.detach().narrow(1, first, length).clone().requires_grad_());
    outputs.push_back(run_layers(own, inputs.back(), [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return parallel.ovq_attention(q, k, v, own.beta, options);
    }));
    expect_near(outputs.back(), expected.narrow(1, first, length), "output " + std::to_string(micro));
  }
  for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
    const auto at = static_cast<size_t>(micro);
    const Tensor weight = sample(20 + micro).narrow(1, first, length);
    const Tensor expected = whole_inputs[at].grad().narrow(1, first, length);
    (outputs[at] * weight).sum().backward();
    expect_near(inputs[at].grad(), expected, "gradient of input " + std::to_string(micro));
    EXPECT_GT(difference_alone(inputs[at], weight, expected, options),
              100 * kTolerance);  // so the state that is passed on matters
  }
  parallel.finish();
  const std::vector<Tensor> shared = own.all(), expected = whole.all();
  for (size_t i = 0; i < shared.size(); ++i) {
    const Tensor gradient = shared[i].grad().clone();
    group->sum(gradient);
    const bool beta = i == 0;
    expect_near(gradient, expected[i].grad(), "gradient of weight " + std::to_string(i),
                beta ? kBetaTolerance : kTolerance);
  }
  EXPECT_GT(parallel.bytes_sent(), 0);
  group->any(false);
}

// The test program starts itself once per rank and border.
TEST(ContextParallel, TwoProcessesAreOne) {
  const char* const border = std::getenv("OVQ_TEST_BORDER");
  if (const auto place = place_from_environment(); place && border != nullptr) {
    check_piece(*place, std::stoll(border));
    return;
  }
  for (const int64_t cut :
       {int64_t{48}, int64_t{53}, int64_t{3}}) {  // at the end of a chunk, within a chunk, within the first chunk
    const StoreServer server;
    std::vector<std::unique_ptr<experiments::ChildProcess>> ranks;
    for (const char* rank : {"0", "1"}) {
      ranks.push_back(std::make_unique<experiments::ChildProcess>(
          experiments::ChildOptions{.command = {"/proc/self/exe", "--gtest_brief=1"},
                                    .environment = {{"RANK", rank},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_PORT", std::to_string(server.port())},
                                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                    {"OMP_NUM_THREADS", "1"},
                                                    {"OVQ_TEST_BORDER", std::to_string(cut)}}}));
    }
    for (auto& rank : ranks) {
      std::optional<int> status;
      while (!(status = rank->poll())) usleep(2000);
      EXPECT_EQ(*status, 0) << "cut after " << cut << " tokens";
    }
  }
}

}  // namespace
}  // namespace ovq::distributed::test
