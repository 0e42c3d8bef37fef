#include "ovq/nn/attention_heads.h"

#include <cmath>

#include "ovq/kernels/error.h"
#include "ovq/nn/parameters.h"
#include "ovq/nn/replaced.h"
#include "ovq/nn/rms_norm.h"

namespace ovq::nn {
namespace {

HeadOptions completed(const char* op, HeadOptions options) {
  using kernels::check;
  check(options.width >= 1, op, "width is ", options.width, "; must be at least 1");
  check(options.heads >= 1, op, "heads is ", options.heads, "; must be at least 1");
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  check(options.kv_heads >= 1 && options.heads % options.kv_heads == 0, op, "kv_heads is ", options.kv_heads,
        "; must divide heads ", options.heads);
  if (options.head_dim == 0) {
    check(options.width % options.heads == 0, op, "heads is ", options.heads, "; must divide width ", options.width,
          ", or head_dim be given");
    options.head_dim = options.width / options.heads;
  }
  check(options.head_dim >= 1, op, "head_dim is ", options.head_dim, "; must be at least 1");
  check(std::isfinite(options.beta_init), op, "beta_init is ", options.beta_init, "; must be finite");
  return options;
}

}  // namespace

Tensor unit_norm(const Tensor& x) { return l2n(x, 1e-12); }

AttentionHeads::AttentionHeads(const char* op, const HeadOptions& options) : op_(op), heads_(completed(op, options)) {
  const int64_t query_width = heads_.heads * heads_.head_dim, key_width = heads_.kv_heads * heads_.head_dim;
  q_proj = register_module("q_proj", make_projection(heads_.width, query_width));
  k_proj = register_module("k_proj", make_projection(heads_.width, key_width));
  v_proj = register_module("v_proj", make_projection(heads_.width, key_width));
  o_proj = register_module("o_proj", make_projection(query_width, heads_.width));
  b = register_parameter("b", at::full({heads_.heads}, heads_.beta_init));
}

StateLayout AttentionHeads::head_layout() const {
  StateLayout layout(op_);
  layout.add("heads", heads_.heads).add("kv_heads", heads_.kv_heads).add("head_dim", heads_.head_dim);
  return layout;
}

AttentionHeads::Projected AttentionHeads::project(const Tensor& x) {
  check_width(op_, x, heads_.width);
  const auto split = [&](const Tensor& y, int64_t heads) { return y.unflatten(-1, {heads, heads_.head_dim}); };
  return {split(q_proj(x), heads_.heads), split(k_proj(x), heads_.kv_heads), split(v_proj(x), heads_.kv_heads)};
}

Tensor AttentionHeads::beta() const { return current(b) * std::sqrt(static_cast<double>(heads_.head_dim)); }

Tensor AttentionHeads::output(const Tensor& o) { return o_proj(o.flatten(2)); }

}  // namespace ovq::nn
