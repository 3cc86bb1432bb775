#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/transformer.h"
#include "examples/models/vision.h"

namespace dtensor::benchmarks {

using examples::over;

Pattern transformer(const DeviceMesh& mesh, int64_t scale) {
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), width = 64 * scale, layers = 2;
  const int64_t source = 12 * scale, target = 10 * scale, batch = 4;  // batch: of a replica
  torch::nn::Transformer model(
      torch::nn::TransformerOptions(width, 8, layers, layers).dim_feedforward(2 * width).dropout(0.0));
  // LibTorch keeps the plain layers that it cloned.
  model->encoder.get<torch::nn::TransformerEncoder>()->options.encoder_layer(nullptr);
  model->decoder.get<torch::nn::TransformerDecoder>()->options.decoder_layer(nullptr);
  distribute_module(*model, mesh, examples::shard_transformer);
  const auto sequence = [&](int64_t length) {
    return randn({length, batch * m, width}, mesh, over(mesh, "dp", Shard(1)));
  };
  const auto x = [&](int64_t length) { return all_reduce(static_cast<double>(length * batch * width * 4), n); };
  // The inputs of the first layers need no gradient; that of the encoder's output is added over the decoder's layers.
  return training(
      mesh,
      [model, from = sequence(source), to = sequence(target)]() mutable { return model(from, to).square().mean(); },
      2 * layers * x(source) + 3 * layers * x(target) + all_reduce(4, m),
      2 * layers * x(source) + (3 * layers - 1) * x(target) + gradients(*model, m));
}

Pattern attention(const DeviceMesh& mesh, int64_t scale) {
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), width = 64 * scale, length = 16 * scale, batch = 4;
  torch::nn::MultiheadAttention model(torch::nn::MultiheadAttentionOptions(width, 8));
  distribute_module(*model, mesh, examples::shard_transformer);
  const auto x = randn({length, batch * m, width}, mesh, over(mesh, "dp", Shard(1)));
  return training(
      mesh,
      [model, x]() mutable { return std::get<0>(model->forward(x, x, x, {}, /*need_weights=*/false)).square().mean(); },
      all_reduce(static_cast<double>(length * batch * width * 4), n) + all_reduce(4, m), gradients(*model, m));
}

Pattern vision_transformer(const DeviceMesh& mesh, int64_t scale) {
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), batch = 8;
  examples::ViTConfig c;
  c.width = 64 * scale;
  c.heads = 8;
  examples::ViT model(c);
  distribute_module(*model, mesh, examples::shard_vit);
  const auto images = randn({batch * m, 3, c.image, c.image}, mesh, over(mesh, "dp", Shard(0)));
  const auto labels = zeros({batch * m}, mesh, over(mesh, "dp", Shard(0)), {.dtype = torch::kLong});
  const int64_t patches = 1 + (c.image / c.patch) * (c.image / c.patch);
  const Traffic through_blocks = 2 * c.layers * all_reduce(static_cast<double>(batch * patches * c.width * 4), n);
  Pattern pattern = training(
      mesh, [model, images, labels]() mutable { return torch::nn::functional::cross_entropy(model(images), labels); },
      through_blocks + all_reduce(8, m), through_blocks + gradients(*model, m));  // the loss: a sum and a count
  // Products of one image. What comes before and after the blocks is small, and whole on every rank.
  const int64_t blocks = c.layers * patches * (12 * c.width * c.width + 2 * patches * c.width);
  const int64_t before = (patches - 1) * 3 * c.patch * c.patch * c.width, after = c.width * c.classes;
  const auto share = [n](int64_t split, int64_t whole) {
    return static_cast<double>(split + n * whole) / static_cast<double>(split + whole);
  };
  pattern.phases[0].work_by_hand = share(blocks, before + after);
  pattern.phases[1].work_by_hand = share(2 * blocks, before + 2 * after);  // images need no gradient
  return pattern;
}

}  // namespace dtensor::benchmarks
