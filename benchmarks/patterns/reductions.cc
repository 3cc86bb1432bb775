// Computations along a sharded dim: candidates, moments, norms.
#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/llama.h"
#include "examples/models/sampling.h"

namespace dtensor::benchmarks {

Pattern sampling(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), batch = 4, best = 5 * scale;
  const auto scores = randn({batch, 8192 * scale}, mesh, {Shard(1)});
  const auto candidates = [&](int64_t of_each) {  // a score and its index
    return all_gather(static_cast<double>(n * batch * of_each * (4 + 8)), n);
  };
  return {mesh,
          {{"argmax", [=] { examples::greedy(scores); }, candidates(1)},
           {"top k", [=] { examples::sample_top_k(scores, best); }, candidates(best)}}};
}

Pattern statistics(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), columns = 16 * scale;
  const auto x = randn({256 * n, columns}, mesh, {Shard(0)});
  const auto numbers = [&](int64_t of_each) { return all_reduce(static_cast<double>(of_each * columns * 4), n); };
  return {mesh,
          {{"std", [=] { x.std(0); }, numbers(3)},
           {"var", [=] { x.var(0); }, numbers(3)},
           {"logsumexp", [=] { x.logsumexp(0); }, numbers(2)},
           {"norm", [=] { x.norm(2, 0); }, numbers(1)},
           {"standardised", [=] { (x - x.mean(0)) / x.std(0); }, numbers(3)},
           {"layer norm", [y = x.t()] { torch::layer_norm(y, {y.size(1)}); }, numbers(2)},
           {"group norm",  // whole groups on every rank
            [y = x.t().unsqueeze(-1), n] { torch::group_norm(y, n); },
            {}}}};
}

Pattern clipping(const DeviceMesh& mesh, int64_t scale) {
  examples::LlamaConfig c;
  c.width *= scale;
  c.hidden *= scale;
  examples::Llama model(c);
  distribute_module(*model, mesh, examples::shard_llama);
  for (auto& p : model->parameters()) p.mutable_grad() = torch::ones_like(p);
  return {mesh,
          {{"clip_grad_norm_", [model]() mutable { torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0); },
            all_reduce(4, mesh.size("tp"))}}};
}

}  // namespace dtensor::benchmarks
