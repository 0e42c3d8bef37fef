#include "ovq/ops/vector_quantize/torch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/base/random.h"
#include "ovq/ops/torch/arguments.h"
#include "ovq/ops/torch/dispatched.h"

namespace ovq::ops {
namespace {

using at::Tensor;

constexpr const char* kVectorQuantize = "vector_quantize";
constexpr int64_t kScoresAtOnce = int64_t{1} << 24;

at::Generator generator_of(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// |c - z| u: the gradient goes through the distance alone
Tensor towards(const Tensor& z, const Tensor& c, const Tensor& noise) {
  const Tensor delta = c - z;
  Tensor u;
  {
    const torch::NoGradGuard no_grad;
    const Tensor noisy = delta + noise;
    u = noisy / noisy.norm(2, -1, true).clamp_min(1e-30);
  }
  return delta.norm(2, -1, true) * u;
}

// What is random: where each segment is cut, [H, segments, 1], and noise at both of its ends, as z. Without `segments`
// only one noise, and the others are empty.
std::tuple<Tensor, Tensor, Tensor> drawn(const Tensor& z, const Tensor& codewords, int64_t seed, bool segments) {
  at::Generator generator = generator_of(static_cast<uint64_t>(seed));
  const auto noise = [&] { return at::randn(z.sizes(), generator, z.options()); };
  if (!segments) return {absent(z), noise(), absent(z)};
  const Tensor share = at::rand({codewords.size(0), codewords.size(1) - 1, 1}, generator, z.options());
  const Tensor first = noise();
  return {share, first, noise()};
}

std::tuple<Tensor, Tensor, Tensor> draw(const VectorQuantizeInputs& in, bool segments) {
  static const auto op = dispatched<decltype(drawn)>("ovq::vector_quantize_noise");
  return call_dispatched(op, in.z, in.codewords, static_cast<int64_t>(in.seed), segments);
}

VectorQuantized nearest_segment(const VectorQuantizeInputs& in) {
  const auto [share, first_noise, second_noise] = draw(in, true);
  const Tensor &z = in.z, &words = in.codewords;
  const int64_t segments = fixed_size(words, 1) - 1;
  const Tensor first = words.narrow(1, 0, segments), second = words.narrow(1, 1, segments);
  Tensor index;
  {
    const torch::NoGradGuard no_grad;
    const Tensor points = (1 - share) * first + share * second;
    // |z - d|^2 is smallest where z . d - |d|^2 / 2 is largest; the bonus counts as similarity
    Tensor bias = -(points.square().sum(-1) / 2);
    if (in.bonus.defined()) {
      bias = at::maximum(in.bonus.narrow(1, 0, segments), in.bonus.narrow(1, 1, segments)) + bias;
    }
    index = nearest_codeword(z, points, bias);
  }
  const Tensor a = gather_rows(words, index), b = gather_rows(words, index + 1);
  const Tensor l = gather_rows(share, index);
  const Tensor noise_a = first_noise * in.noise, noise_b = second_noise * in.noise;
  return {.z_q = z + (1 - l) * towards(z, a, noise_a) + l * towards(z, b, noise_b), .index = index};
}

Tensor nearest(const Tensor& z, const Tensor& codewords, const c10::optional<Tensor>& bonus) {
  return nearest_codeword(z, codewords, or_undefined(bonus));
}

QuantizerGradient gradient_from(const std::string& name) {
  if (name == "straight_through") return QuantizerGradient::straight_through;
  if (name == "diveq") return QuantizerGradient::diveq;
  if (name == "sf_diveq") return QuantizerGradient::sf_diveq;
  fail(kVectorQuantize, "gradient is '", name, "'; must be 'straight_through', 'diveq' or 'sf_diveq'");
}

std::tuple<Tensor, Tensor> vector_quantize_op(const Tensor& z, const Tensor& codewords, std::string gradient,
                                              const c10::optional<Tensor>& bonus, double noise, int64_t seed) {
  check_arguments(kVectorQuantize,
                  {{"z", z}, {"codewords", codewords, kLikeFirst}, {"bonus", or_undefined(bonus), kOptional}});
  check_dims(kVectorQuantize, "z", z, 4, "[batch, time, heads, dim]");
  const VectorQuantized result = vector_quantize({.z = by_head(z),
                                                  .codewords = codewords.to(z.scalar_type()),
                                                  .bonus = bonus ? bonus->to(z.scalar_type()) : Tensor(),
                                                  .gradient = gradient_from(gradient),
                                                  .noise = noise,
                                                  .seed = static_cast<uint64_t>(seed)});
  return {by_token(result.z_q, z.sym_size(0), z.sym_size(1)), by_token(result.index, z.sym_size(0), z.sym_size(1))};
}

}  // namespace

VectorQuantized vector_quantize(const VectorQuantizeInputs& in) {
  const Tensor &z = in.z, &words = in.codewords;
  check(words.dim() == 3 && z.dim() == 3 && words.sym_size(0) == z.sym_size(0) && words.sym_size(2) == z.sym_size(2),
        kVectorQuantize, "codewords has shape ", ShapeText{words}, "; must be [", SizeText{z, 0}, ", codewords, ",
        SizeText{z, -1}, "]");
  const int64_t fewest = in.gradient == QuantizerGradient::sf_diveq ? 2 : 1;
  check(words.sym_size(1) >= fewest, kVectorQuantize, "codewords has ", SizeText{words, 1},
        " codewords; must have at least ", fewest);
  check(!in.bonus.defined() || in.bonus.sym_sizes() == words.sym_sizes().slice(0, 2), kVectorQuantize,
        "bonus has shape ", ShapeText{in.bonus}, "; must be [", SizeText{words, 0}, ", ", SizeText{words, 1}, "]");
  check(in.noise >= 0, kVectorQuantize, "noise is ", in.noise, "; must be at least 0");
  if (in.gradient == QuantizerGradient::sf_diveq) return nearest_segment(in);
  const Tensor index = nearest_codeword(z, words, in.bonus), c = gather_rows(words, index);
  if (in.gradient == QuantizerGradient::straight_through) {
    return {.z_q = z + (c - z).detach(), .index = index, .codeword = c};
  }
  const Tensor noise = std::get<1>(draw(in, false)) * in.noise;
  return {.z_q = z + towards(z, c, noise), .index = index, .codeword = c};
}

Tensor nearest_codeword(const Tensor& z, const Tensor& codewords, const Tensor& bonus) {
  const torch::NoGradGuard no_grad;
  if (is_traced({z, codewords, bonus})) {
    static const auto op = dispatched<decltype(nearest)>("ovq::nearest_codeword");
    return call_dispatched(op, z, codewords, optional(bonus));
  }
  // In full precision also under autocast: which codeword is nearest is no matter for eight bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t rows =
      std::max<int64_t>(1, kScoresAtOnce / std::max<int64_t>(1, codewords.size(0) * codewords.size(1)));
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < z.size(1); first += rows) {
    const Tensor piece = z.narrow(1, first, std::min(rows, z.size(1) - first));
    Tensor scores = at::bmm(piece, codewords.transpose(1, 2));
    if (bonus.defined()) scores.add_(bonus.unsqueeze(1));
    parts.push_back(scores.argmax(-1));
  }
  return parts.empty() ? at::empty({z.size(0), 0}, z.options().dtype(at::kLong)) : at::cat(parts, 1);
}

Tensor gather_rows(const Tensor& x, const Tensor& index) {
  return x.gather(1, index.unsqueeze(-1).expand_symint({-1, -1, x.sym_size(2)}));
}

uint64_t fingerprint(const Tensor& x) {
  if (x.is_meta()) return 0;
  const Tensor flat = x.detach().to(at::kCPU, at::kFloat).contiguous();
  const auto* words = reinterpret_cast<const uint32_t*>(flat.data_ptr<float>());
  uint64_t hash = static_cast<uint64_t>(flat.numel());
  for (int64_t i = 0; i < flat.numel(); ++i) {
    hash = (hash ^ words[i]) * kGoldenRatio;
    hash ^= hash >> 32;
  }
  return hash;
}

bool inside_backward() { return torch::autograd::get_current_graph_task_exec_info() != nullptr; }

Tensor by_head(const Tensor& x) { return x.permute({2, 0, 1, 3}).reshape_symint({x.sym_size(2), -1, x.sym_size(3)}); }

Tensor by_token(const Tensor& x, const c10::SymInt& batch, const c10::SymInt& time) {
  std::vector<c10::SymInt> shape = {x.sym_size(0), batch, time};
  std::vector<int64_t> order = {1, 2, 0};
  for (int64_t i = 2; i < x.dim(); ++i) {
    shape.push_back(x.sym_size(i));
    order.push_back(i + 1);
  }
  return x.view_symint(shape).permute(order);
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  library.def(
      "vector_quantize(Tensor z, Tensor codewords, str gradient='straight_through', Tensor? bonus=None, "
      "float noise=0.001, int seed=0) -> (Tensor, Tensor)",
      vector_quantize_op);
  const auto on_any = [&](const char* schema, auto* function) {
    library.def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
  };
  on_any("nearest_codeword(Tensor z, Tensor codewords, Tensor? bonus) -> Tensor", nearest);
  on_any(
      "vector_quantize_noise(Tensor z, Tensor codewords, int seed, bool segments) -> (Tensor share, Tensor first, "
      "Tensor second)",
      drawn);
  on_any(
      "fingerprint(Tensor x) -> int", +[](const Tensor& x) { return static_cast<int64_t>(fingerprint(x)); });
  library.def("inside_backward() -> bool", inside_backward);
}

}  // namespace ovq::ops
