// Every parameter in parts over the ranks that share the batch: training on a mesh is training on one device.
#include "examples/models/layouts.h"
#include "examples/models/transformer.h"
#include "tests/examples/against_one_device.h"
#include "tests/examples/small_llama.h"

namespace dtensor {
namespace {

torch::Tensor llama_loss(examples::Llama& model, const Tensors& in) {
  const auto scores = model(in[0]);
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in[1].view({-1}));
}

TEST_CASE("fully sharded: a Llama, a perceptron, torch::nn::Transformer", "[examples]") {
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(4), {4}, {"dp"}), DeviceMesh(World::local(3), {3}, {"dp"}),
                                 DeviceMesh(World::local(4), {2, 2}, {"replicas", "shards"})}) {
    const Placements rows(static_cast<size_t>(mesh.ndim()), Shard(0)), second(rows.size(), Shard(1));
    const auto ids = torch::randint(23, {8, 5}), targets = torch::randint(23, {8, 5});
    check_training<examples::Llama>([] { return examples::Llama(small_llama()); }, examples::shard_fully, mesh,
                                    {{ids, rows}, {targets, rows}}, llama_loss);
    using torch::nn::Sequential;
    check_training<Sequential>(
        [] {
          return Sequential(torch::nn::Linear(10, 9), torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})),
                            torch::nn::GELU(), torch::nn::Linear(9, 3));
        },
        examples::shard_fully, mesh, {{doubles({8, 10}), rows}},
        [](Sequential& model, const Tensors& in) { return model->forward(in[0]).square().mean(); });
    check_training<torch::nn::Transformer>(
        [] {
          return torch::nn::Transformer(torch::nn::TransformerOptions(12, 3, 1, 1).dim_feedforward(13).dropout(0.0));
        },
        examples::shard_fully, mesh, {{doubles({5, 8, 12}), second}, {doubles({3, 8, 12}), second}},
        [](torch::nn::Transformer& model, const Tensors& in) { return model(in[0], in[1]).square().mean(); });
  }
}

TEST_CASE("clip_grad_norm_ of gradients in several layouts", "[examples]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  for (const auto& shard : {examples::shard_llama, examples::shard_fully}) {
    for (const double kind : {2.0, 1.0, 3.0, double{INFINITY}}) {
      CAPTURE(kind);
      double norms[2] = {};
      Tensors clipped[2];
      for (const bool distributed : {false, true}) {
        torch::manual_seed(3);
        examples::Llama model(small_llama());
        model->to(torch::kDouble);
        if (distributed) distribute_module(*model, mesh, shard);
        torch::manual_seed(4);
        for (auto& p : model->parameters()) {
          const auto gradient = torch::randn(p.sizes(), torch::kDouble);
          p.mutable_grad() = distributed ? distribute_tensor(gradient, mesh, DTensor(p).placements()) : gradient;
        }
        norms[distributed] = torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5, kind);
        for (const auto& p : model->parameters()) clipped[distributed].push_back(whole(p.grad()));
      }
      CHECK(norms[1] == Approx(norms[0]).epsilon(1e-12));
      for (size_t i = 0; i < clipped[0].size(); ++i) CHECK(torch::allclose(clipped[1][i], clipped[0][i], 1e-10, 1e-14));
    }
  }
}

}  // namespace
}  // namespace dtensor
