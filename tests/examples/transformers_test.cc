// Transformers that know nothing of meshes learn on a mesh what they learn on one device.
#include "examples/models/decoder.h"
#include "examples/models/layouts.h"
#include "examples/models/transformer.h"
#include "examples/models/vision.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

using examples::over;

std::vector<DeviceMesh> meshes() {
  return {DeviceMesh(World::local(2), {2}, {"dp"}), DeviceMesh(World::local(4), {4}, {"tp"}),
          DeviceMesh(World::local(6), {3, 2}, {"dp", "tp"})};
}

TEST_CASE("torch::nn::Transformer on a mesh", "[examples]") {
  const auto loss = [](torch::nn::Transformer& model, const Tensors& in) {
    return model(in[0], in[1]).square().mean();
  };
  for (const DeviceMesh& mesh : meshes()) {
    for (const auto& [width, heads, hidden] : {std::tuple<int64_t, int64_t, int64_t>{16, 4, 20}, {18, 6, 13}}) {
      const auto make = [w = width, h = heads, f = hidden] {
        return torch::nn::Transformer(torch::nn::TransformerOptions(w, h, 2, 2).dim_feedforward(f).dropout(0.0));
      };
      const Placements batch = over(mesh, "dp", Shard(1));
      check_training<torch::nn::Transformer>(make, examples::shard_transformer, mesh,
                                             {{doubles({5, 4, width}), batch}, {doubles({3, 4, width}), batch}}, loss);
    }
  }
}

TEST_CASE("torch::nn::MultiheadAttention on a mesh, with weights and without", "[examples]") {
  for (const DeviceMesh& mesh : meshes()) {
    const Placements batch = over(mesh, "dp", Shard(1));
    const auto make = [] { return torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(12, 3)); };
    const std::vector<Input> inputs = {{doubles({5, 4, 12}), batch}, {doubles({3, 4, 12}), batch}};
    check_training<torch::nn::MultiheadAttention>(make, examples::shard_transformer, mesh, inputs,
                                                  [](torch::nn::MultiheadAttention& model, const Tensors& in) {
                                                    const auto [out, weights] = model(in[0], in[0], in[0]);
                                                    return out.square().mean() + weights.square().mean();
                                                  });
    check_training<torch::nn::MultiheadAttention>(
        make, examples::shard_transformer, mesh, inputs, [](torch::nn::MultiheadAttention& model, const Tensors& in) {
          return std::get<0>(model->forward(in[0], in[1], in[1], {}, /*need_weights=*/false)).square().mean();
        });
  }
}

TEST_CASE("a decoder on a mesh, in all the ways to write it", "[examples]") {
  using examples::FeedForward, examples::Norm, examples::Projection;
  std::vector<examples::DecoderConfig> configs(9);
  configs[1].norm = Norm::kRMSNorm;
  configs[2].norm = Norm::kRMSNormByHand;
  configs[3].norm = Norm::kLayerNormByHand;
  configs[4].projection = Projection::kFusedAndCut;
  configs[5].projection = Projection::kFusedAndViewed;
  configs[6].feed_forward = FeedForward::kGatedHalves;
  configs[7].feed_forward = FeedForward::kGLU;
  configs[8] = {Norm::kRMSNormByHand, Projection::kFusedAndCut, FeedForward::kGatedHalves};
  for (examples::DecoderConfig c : configs) {
    c.width = 18;
    c.heads = 3;  // of which one of four ranks has none
    for (const DeviceMesh& mesh : meshes()) {
      CAPTURE(static_cast<int>(c.norm), static_cast<int>(c.projection), static_cast<int>(c.feed_forward));
      check_training<examples::Decoder>(
          [=] { return examples::Decoder(c); }, examples::shard_decoder, mesh,
          {{doubles({4, 5, c.width}), over(mesh, "dp", Shard(0))}},
          [](examples::Decoder& model, const Tensors& in) { return model(in[0]).square().mean(); });
    }
  }
}

TEST_CASE("a vision transformer on a mesh", "[examples]") {
  examples::ViTConfig c;
  c.width = 12;
  c.heads = 3;
  c.image = 16;
  for (const DeviceMesh& mesh : meshes()) {
    const Placements batch = over(mesh, "dp", Shard(0));
    check_training<examples::ViT>([=] { return examples::ViT(c); }, examples::shard_vit, mesh,
                                  {{doubles({4, 3, c.image, c.image}), batch}, {torch::randint(c.classes, {4}), batch}},
                                  [](examples::ViT& model, const Tensors& in) {
                                    return torch::nn::functional::cross_entropy(model(in[0]), in[1]);
                                  });
  }
}

}  // namespace
}  // namespace dtensor
