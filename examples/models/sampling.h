// Choosing a language model's next words from scores [batch, vocab], and some statistics, in plain ATen.
#pragma once

#include <torch/types.h>

namespace examples {

inline torch::Tensor greedy(const torch::Tensor& scores) { return scores.argmax(-1, /*keepdim=*/true); }

// Draws among the k best, by their probabilities among each other. -> [batch, 1].
inline torch::Tensor sample_top_k(const torch::Tensor& scores, int64_t k, double temperature = 1.0) {
  const auto [best, ids] = scores.topk(k, -1);
  return ids.gather(-1, torch::softmax(best / temperature, -1).multinomial(1));
}

}  // namespace examples
