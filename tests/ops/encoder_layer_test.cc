// The fused operators of MultiheadAttention and TransformerEncoderLayer, compared with ATen's kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/_transformer_encoder_layer_fwd.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<std::vector<int64_t>>;

constexpr int64_t kBatch = 3, kLength = 4, kFeatures = 8, kHeads = 2;

// True at ignored positions; never the first one.
at::Tensor mask_of(const std::vector<int64_t>& shape) {
  at::Tensor mask = at::rand(shape, at::kDouble).gt(0.6);
  mask.select(-1, 0).fill_(false);
  return mask;
}

OpCase of_floats(const std::string& name, Sizes shapes, std::function<Tensors(const Tensors&)> fn) {
  OpCase c{name, std::move(fn), std::move(shapes)};
  c.grad.assign(c.shapes.size(), false);
  c.partial_inputs = false;
  return c;
}

const Sizes kAttention = {
    {kBatch, kLength, kFeatures}, {3 * kFeatures, kFeatures}, {3 * kFeatures}, {kFeatures, kFeatures}, {kFeatures}};

}  // namespace

TEST_CASE("native attention equals ATen's kernel in every layout", "[ops][encoder]") {
  const c10::NoGradGuard no_grad;
  for (const bool need_weights : {true, false}) {
    const auto c = of_floats("self attention", kAttention, [=](const Tensors& t) {
      auto [y, weights] = at::_native_multi_head_attention(t[0], t[0], t[0], kFeatures, kHeads, t[1], t[2], t[3], t[4],
                                                           {}, need_weights, true);
      return need_weights ? Tensors{y, weights} : Tensors{y};
    });
    check_op(c, 16);
  }
  check_op(of_floats("weights of each head", kAttention,
                     [](const Tensors& t) {
                       auto [y, weights] = at::_native_multi_head_attention(t[0], t[0], t[0], kFeatures, kHeads, t[1],
                                                                            t[2], t[3], t[4], {}, true, false);
                       return Tensors{y, weights};
                     }),
           8);
}

TEST_CASE("native attention with masks of every type equals ATen's kernel", "[ops][encoder]") {
  const c10::NoGradGuard no_grad;
  const std::pair<int64_t, std::vector<int64_t>> types[] = {
      {0, {kLength, kLength}}, {1, {kBatch, kLength}}, {2, {kBatch, kHeads, kLength, kLength}}};
  const DeviceMesh& mesh = test_meshes()[0];
  for (const auto& [type, shape] : types) {
    CAPTURE(type);
    const at::Tensor mask = mask_of(shape);
    Tensors values, on_mesh;
    for (const auto& s : kAttention) values.push_back(at::rand(s, at::kDouble).sub(0.5));
    for (size_t k = 0; k < values.size(); ++k)
      on_mesh.push_back(lay_out(values[k], mesh, {k == 0 ? Placement(Shard(0)) : Placement(Replicate())}));
    const auto run = [&, type = type](const Tensors& t, const at::Tensor& m) {
      return at::_native_multi_head_attention(t[0], t[0], t[0], kFeatures, kHeads, t[1], t[2], t[3], t[4], m, true,
                                              true, type);
    };
    const auto [y, weights] = run(values, mask);
    const auto [actual, actual_weights] = run(on_mesh, lay_out(mask, mesh, {Replicate()}));
    CHECK(difference(actual, y) == std::nullopt);
    CHECK(difference(actual_weights, weights) == std::nullopt);
  }
}

TEST_CASE("a fused encoder layer equals ATen's kernel in every layout", "[ops][encoder]") {
  const c10::NoGradGuard no_grad;
  const Sizes shapes = {{kBatch, kLength, kFeatures},
                        {3 * kFeatures, kFeatures},
                        {3 * kFeatures},
                        {kFeatures, kFeatures},
                        {kFeatures},
                        {kFeatures},
                        {kFeatures},
                        {kFeatures},
                        {kFeatures},
                        {6, kFeatures},
                        {6},
                        {kFeatures, 6},
                        {kFeatures}};
  Tensors values;
  for (const auto& s : shapes) values.push_back(at::rand(s, at::kDouble).sub(0.5));
  const at::Tensor padding = mask_of({kBatch, kLength});
  for (const DeviceMesh& mesh : test_meshes()) {
    for (const bool norm_first : {false, true}) {
      for (const bool use_gelu : {false, true}) {
        const auto run = [&](const Tensors& t, const at::Tensor& mask) {
          return at::_transformer_encoder_layer_fwd(t[0], kFeatures, kHeads, t[1], t[2], t[3], t[4], use_gelu,
                                                    norm_first, 1e-5, t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12],
                                                    mask.defined() ? std::optional(mask) : std::nullopt,
                                                    mask.defined() ? std::optional<int64_t>(1) : std::nullopt);
        };
        // The batch; rows of the first matrix and columns of the second, as in tensor parallelism.
        for (const bool splits_batch : {true, false}) {
          const auto placement = [&](size_t k) -> Placement {
            if (splits_batch) return k == 0 ? Placement(Shard(0)) : Placement(Replicate());
            if (k == 9 || k == 10) return Shard(0);
            return k == 11 ? Placement(Shard(1)) : Placement(Replicate());
          };
          Tensors on_mesh;
          for (size_t k = 0; k < values.size(); ++k) {
            Placements placements(mesh.ndim(), Replicate());
            placements[0] = placement(k);
            on_mesh.push_back(lay_out(values[k], mesh, placements));
          }
          CAPTURE(norm_first, use_gelu, splits_batch, mesh.to_string());
          CHECK(difference(run(on_mesh, {}), run(values, {})) == std::nullopt);
          const auto mask = lay_out(padding, mesh, Placements(mesh.ndim(), Replicate()));
          CHECK(difference(run(on_mesh, mask), run(values, padding)) == std::nullopt);
        }
      }
    }
  }
}

TEST_CASE("heads with a bias and a scale equal ATen's kernel", "[ops][encoder]") {
  const c10::NoGradGuard no_grad;
  check_op(of_floats("heads", {{kBatch, kLength, 3 * kFeatures}, {3 * kFeatures}}, [](const Tensors& t) {
    auto [q, k, v] = at::_transform_bias_rescale_qkv(t[0], t[1], kHeads);
    return Tensors{q, k, v};
  }));
}

}  // namespace dtensor::testing
