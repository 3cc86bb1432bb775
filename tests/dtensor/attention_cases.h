// Calls of scaled_dot_product_attention() over a sharded sequence, and their inputs.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dtensor/dtensor.h"

namespace dtensor {

using Tensors = std::vector<torch::Tensor>;
using Method = ContextParallelMethod;

struct Sizes {
  int64_t batch = 2, heads = 4, key_heads = 4, length = 12, keys = 12, features = 3, out_features = 3;
};

struct AttentionCase {
  Sizes sizes = {};
  bool causal = false;
  ContextParallelOptions options = {};
  std::vector<int64_t> mask = {};  // its sizes; none: no mask
  bool boolean_mask = false;
};

inline torch::Tensor attention(const Tensors& t, const AttentionCase& c) {
  return torch::scaled_dot_product_attention(t[0], t[1], t[2], t.size() > 3 ? std::optional(t[3]) : std::nullopt, 0.,
                                             c.causal, std::nullopt, c.sizes.heads != c.sizes.key_heads);
}

inline Tensors inputs_of(const AttentionCase& c, torch::ScalarType dtype = torch::kDouble) {
  torch::manual_seed(5);
  const Sizes& s = c.sizes;
  Tensors inputs = {torch::randn({s.batch, s.heads, s.length, s.features}, dtype),
                    torch::randn({s.batch, s.key_heads, s.keys, s.features}, dtype),
                    torch::randn({s.batch, s.key_heads, s.keys, s.out_features}, dtype)};
  for (torch::Tensor& t : inputs) t.requires_grad_();
  if (!c.mask.empty()) {
    const auto mask = torch::randn(c.mask, dtype);
    inputs.push_back(c.boolean_mask ? mask > 0 : mask);
  }
  return inputs;
}

inline DeviceMesh cp_mesh(int64_t n) { return DeviceMesh(World::local(n), {n}, {"cp"}); }

inline std::vector<Method> both_methods() { return {Method::kRing, Method::kAllToAll}; }

}  // namespace dtensor
