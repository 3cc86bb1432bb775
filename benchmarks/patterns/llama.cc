#include "examples/models/llama.h"

#include <torch/nn.h>

#include <memory>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"

namespace dtensor::benchmarks {
namespace {

constexpr int64_t kBatch = 4;  // of a data-parallel replica

examples::LlamaConfig config(int64_t scale) {
  examples::LlamaConfig c;
  c.width *= scale;
  c.hidden *= scale;
  c.vocab *= scale;
  return c;
}

// The embedding and both halves of each block, of activations of `bytes`.
Traffic through_blocks(const examples::LlamaConfig& c, double bytes, int64_t n) {
  return (1 + 2 * c.layers) * all_reduce(bytes, n);
}

}  // namespace

Pattern llama(const DeviceMesh& mesh, int64_t scale) {
  using examples::over;
  const examples::LlamaConfig c = config(scale);
  const int64_t m = mesh.size("dp"), n = mesh.size("tp"), batch = kBatch * m, length = 16 * scale;
  examples::Llama model(c);
  distribute_module(*model, mesh, examples::shard_llama);
  const auto ids = [&] {
    return distribute_tensor(torch::randint(c.vocab, {batch, length}), mesh, over(mesh, "dp", Shard(0)));
  };
  const double tokens = static_cast<double>(kBatch * length), x = tokens * static_cast<double>(c.width) * 4;
  return training(
      mesh,
      [model, ids = ids(), targets = ids()]() mutable {
        const auto scores = model->forward(ids);
        return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets.view({-1}));
      },
      // Then maximum, sum and target scores; the mean.
      through_blocks(c, x, n) + all_reduce(tokens * 4, n) + all_reduce(2 * tokens * 4, n) + all_reduce(4, m),
      through_blocks(c, x, n) + gradients(*model, m));
}

Pattern llama_generation(const DeviceMesh& mesh, int64_t scale) {
  const examples::LlamaConfig c = config(scale);
  const int64_t n = mesh.size("tp"), length = 16 * scale;
  struct State {
    examples::Llama model{nullptr};
    at::Tensor ids = {};
    SequenceSlots slots;
    std::vector<KVCache> caches;
  };
  auto state = std::make_shared<State>(State{.model = examples::Llama(c),
                                             .slots = SequenceSlots(kBatch, 2 * length),
                                             .caches = std::vector<KVCache>(c.layers)});
  while (state->slots.join()) continue;
  distribute_module(*state->model, mesh, examples::shard_llama);
  state->ids = distribute_tensor(torch::randint(c.vocab, {kBatch, length}), mesh);
  // The cache's heads, its keys and values among them, stay where they are. Every rank names its best next id.
  const auto next = [=] {
    const at::NoGradGuard no_grad;
    const MeshScope scope(mesh);
    const GenerationStep step = state->slots.step(std::vector<int64_t>(kBatch, state->ids.size(1)));
    state->ids = state->model->score_next(state->ids, step, state->caches).argmax(-1, /*keepdim=*/true);
    state->slots.advance(step);
  };
  const auto by_hand = [&](int64_t tokens) {
    return through_blocks(c, static_cast<double>(kBatch * tokens * c.width * 4), n) +
           all_gather(static_cast<double>(n * kBatch * (4 + 8)), n);
  };
  return {mesh, {{"prompt", next, by_hand(length)}, {"a token", next, by_hand(1)}, {"the next", next, by_hand(1)}}};
}

}  // namespace dtensor::benchmarks
