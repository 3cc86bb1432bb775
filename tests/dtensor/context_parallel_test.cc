// Attention over a sequence that is sharded over a mesh dim has the values and gradients of one device.
#include <ATen/autocast_mode.h>

#include <string>

#include "examples/models/decoder.h"
#include "examples/models/layouts.h"
#include "ops/network/attention_tiles.h"
#include "tests/dtensor/attention_cases.h"
#include "tests/examples/against_one_device.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor {
namespace {

using internal::PartRun;
using testing::difference;

// Results and gradients with `placements` of query, key and value, beside those of one device.
void check_attention(const AttentionCase& c, const DeviceMesh& mesh, const Placements& placements,
                     double tolerance = 1e-11, torch::ScalarType dtype = torch::kDouble) {
  CAPTURE(mesh.to_string(), to_string(placements), c.causal, static_cast<int>(c.options.method), c.options.load_balance,
          c.sizes.length, c.sizes.keys, c.sizes.heads, c.sizes.key_heads, c.mask);
  const Tensors plain = inputs_of(c, dtype);
  const torch::Tensor expected = attention(plain, c);
  const torch::Tensor seed = torch::randn(expected.sizes(), dtype);
  expected.backward(seed);

  const int64_t ranks = mesh.size("cp");
  const auto lay_out = [&](const torch::Tensor& t) {
    const auto ordered = c.options.load_balance ? to_head_tail(t.detach(), 2, ranks) : t.detach();
    return distribute_tensor(ordered, mesh, placements);
  };
  Tensors split;
  for (size_t i = 0; i < 3; ++i) split.push_back(lay_out(plain[i]).requires_grad_());
  if (plain.size() > 3) split.push_back(distribute_tensor(plain[3], mesh, Placements(mesh.ndim(), Replicate())));
  torch::Tensor out;
  {
    const ContextParallel scope("cp", c.options);
    out = attention(split, c);
  }
  CHECK(out.strides() == expected.strides());
  CHECK(to_string(DTensor(out).placements()) == to_string(placements));
  out.backward(lay_out(seed));
  const auto whole_of = [&](const torch::Tensor& t) {
    const auto gathered = full_tensor(t);
    return c.options.load_balance ? from_head_tail(gathered, 2, ranks) : gathered;
  };
  const auto near = [&](const torch::Tensor& a, const torch::Tensor& b) {
    return torch::allclose(a.to(torch::kDouble), b.to(torch::kDouble), tolerance, tolerance);
  };
  CHECK(near(whole_of(out.detach()), expected));
  for (size_t i = 0; i < 3; ++i) {
    INFO("gradient " << i);
    CHECK(near(whole_of(split[i].grad()), plain[i].grad()));
    CHECK(split[i].grad().scalar_type() == dtype);
  }
}

TEST_CASE("tiles of attention have each pair of a query and a key it sees once", "[context_parallel]") {
  const int64_t n = 3;
  for (const int64_t length : {1, 2, 5, 12, 17}) {
    for (const int64_t keys : {length, int64_t{7}}) {
      for (const Placement& p : {Shard(0), StridedShard(0, 2)}) {
        for (const bool head_tail : {false, true}) {
          for (const bool causal : {false, true}) {
            for (const int64_t max_rows : {2, 100}) {
              CAPTURE(length, keys, to_string(p), head_tail, causal, max_rows);
              const auto runs_of = [&](int64_t size, int64_t rank) {
                const auto order = head_tail ? internal::head_tail_runs(size, n) : std::vector<IndexRange>();
                return internal::part_runs(internal::shard_runs({IndexRange{0, size}}, p, n, rank), order);
              };
              const auto positions = [](const std::vector<PartRun>& runs) {
                std::vector<int64_t> result;
                for (const PartRun& run : runs) {
                  for (int64_t i = 0; i < run.size; ++i) result.push_back(run.position + i);
                }
                return result;
              };
              for (int64_t rank = 0; rank < n; ++rank) {
                for (int64_t block = 0; block < n; ++block) {
                  const auto q = runs_of(length, rank), k = runs_of(keys, block);
                  const auto of_q = positions(q), of_k = positions(k);
                  std::vector<std::vector<int>> seen(of_q.size(), std::vector<int>(of_k.size()));
                  for (const auto& tile : internal::attention_tiles(q, k, causal, max_rows)) {
                    CHECK(tile.q_size <= max_rows);
                    for (int64_t i = 0; i < tile.q_size; ++i) {
                      for (int64_t j = 0; j < (tile.causal ? i + 1 : tile.k_size); ++j)
                        ++seen.at(tile.q_begin + i).at(tile.k_begin + j);
                    }
                  }
                  for (size_t i = 0; i < of_q.size(); ++i) {
                    for (size_t j = 0; j < of_k.size(); ++j) CHECK(seen[i][j] == (causal && of_k[j] > of_q[i] ? 0 : 1));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("attention over a sharded sequence equals that of one device, with its gradients", "[context_parallel]") {
  for (const Method method : both_methods()) {
    for (const bool causal : {false, true}) {
      for (const int64_t n : {1, 2, 4}) {
        for (const int64_t length : {12, 13}) {
          check_attention({{.length = length, .keys = length}, causal, {.method = method}}, cp_mesh(n), {Shard(2)});
        }
      }
      check_attention({{.length = 12, .keys = 7}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{.length = 5, .keys = 14}, causal, {.method = method}}, cp_mesh(3), {Shard(2)});
      check_attention({{.length = 3, .keys = 2}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{.heads = 5, .key_heads = 5}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{.features = 3, .out_features = 5}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{}, causal, {.method = method}}, cp_mesh(3), {StridedShard(2, 2)});
    }
  }
  check_attention({{.heads = 2, .key_heads = 2}, true, {.method = Method::kRing}}, cp_mesh(4), {Shard(2)});
}

TEST_CASE("a sequence in head-tail order has the attention of the order before", "[context_parallel]") {
  for (const Method method : both_methods()) {
    for (const bool causal : {false, true}) {
      for (const int64_t length : {16, 13, 5, 2}) {
        check_attention({{.length = length, .keys = length}, causal, {.method = method, .load_balance = true}},
                        cp_mesh(4), {Shard(2)});
      }
    }
  }
}

TEST_CASE("grouped-query attention over a sharded sequence equals that of one device", "[context_parallel]") {
  for (const Method method : both_methods()) {
    for (const bool causal : {false, true}) {
      check_attention({{.heads = 8, .key_heads = 4}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{.heads = 6, .key_heads = 2}, causal, {.method = method}}, cp_mesh(4), {Shard(2)});
      check_attention({{.heads = 4, .key_heads = 1, .features = 2}, causal, {.method = method}}, cp_mesh(3),
                      {Shard(2)});
    }
  }
}

TEST_CASE("attention over a sharded sequence takes masks of every shape", "[context_parallel]") {
  for (const Method method : both_methods()) {
    for (const auto& mask : std::vector<std::vector<int64_t>>{
             {12, 10}, {1, 1, 12, 10}, {2, 1, 12, 10}, {1, 4, 12, 10}, {2, 4, 12, 10}, {2, 1, 1, 10}, {12, 1}}) {
      check_attention({{.keys = 10}, false, {.method = method}, mask}, cp_mesh(4), {Shard(2)});
    }
    check_attention({{.length = 9, .keys = 40}, false, {.method = method}, {9, 40}, true}, cp_mesh(4), {Shard(2)});
    check_attention({{.heads = 4, .key_heads = 2}, false, {.method = method}, {2, 4, 12, 12}}, cp_mesh(2), {Shard(2)});
    check_attention({{}, false, {.method = method}, {2, 4, 12, 12}}, cp_mesh(3), {StridedShard(2, 2)});
  }
}

TEST_CASE("queries whose mask has no key get zeros and gradients of zero", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors plain = inputs_of({});
  auto mask = torch::ones({12, 12}, torch::kBool).tril(-1);  // query 0 sees nothing
  Tensors split;
  for (const auto& t : plain) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}).requires_grad_());
  const ContextParallel scope("cp", {.method = Method::kRing});
  const auto out =
      torch::scaled_dot_product_attention(split[0], split[1], split[2], distribute_tensor(mask, mesh, {Replicate()}));
  const auto expected = torch::scaled_dot_product_attention(plain[0], plain[1], plain[2], mask);
  out.square().sum().backward();
  const auto result = full_tensor(out);
  CHECK(result.select(2, 0).abs().max().item<double>() == 0);
  CHECK(torch::allclose(result.slice(2, 1), expected.slice(2, 1)));
  for (const auto& t : split) CHECK(full_tensor(t.grad()).isfinite().all().item<bool>());
  CHECK(full_tensor(split[0].grad()).select(2, 0).abs().max().item<double>() == 0);
}

TEST_CASE("context parallel beside data and tensor parallel equals one device", "[context_parallel]") {
  const World world = World::local(8);
  struct Layout {
    DeviceMesh mesh;
    Placements placements;
  };
  const std::vector<Layout> layouts = {
      {DeviceMesh(world, {2, 2, 2}, {"dp", "tp", "cp"}), {Shard(0), Shard(1), Shard(2)}},
      {DeviceMesh(world, {2, 2, 2}, {"dp", "cp", "tp"}), {Shard(0), Shard(2), Shard(1)}},
      {DeviceMesh(world, {2, 4}, {"tp", "cp"}), {Shard(1), Shard(2)}},
      {DeviceMesh(world, {4, 2}, {"cp", "dp"}), {Shard(2), Shard(0)}},
      {DeviceMesh(world, {4, 2}, {"cp", "other"}), {Shard(2), Replicate()}},
  };
  for (const Method method : both_methods()) {
    for (const Layout& on : layouts) {
      for (const int64_t key_heads : {8, 4}) {
        check_attention(
            {{.batch = 3, .heads = 8, .key_heads = key_heads, .length = 11, .keys = 11}, true, {.method = method}},
            on.mesh, on.placements);
      }
      check_attention({{.heads = 9, .key_heads = 9}, false, {.method = method, .load_balance = true}}, on.mesh,
                      on.placements);
    }
  }
}

TEST_CASE("attention of half types over a sharded sequence is as exact as that of one device", "[context_parallel]") {
  for (const Method method : both_methods()) {
    check_attention({{.length = 32, .keys = 32, .features = 8, .out_features = 8}, true, {.method = method}},
                    cp_mesh(4), {Shard(2)}, 0.03, torch::kBFloat16);
    check_attention({{}, true, {.method = method}}, cp_mesh(4), {Shard(2)}, 1e-5, torch::kFloat);
  }
}

TEST_CASE("arguments in other layouts are redistributed, and the result is sharded by length", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors plain = inputs_of({});
  const auto expected = attention(plain, {}).detach();
  for (const Method method : both_methods()) {
    const ContextParallel scope("cp", {.method = method});
    for (const Placement& p : {Replicate(), Shard(0), Shard(1), Shard(3)}) {
      Tensors split;
      for (const auto& t : plain) split.push_back(distribute_tensor(t.detach(), mesh, {p}));
      const auto out = attention(split, {});
      CHECK(to_string(DTensor(out).placements()) == "S(2)");
      CHECK(testing::difference(out, expected).value_or("") == "");
    }
    const auto partial = testing::lay_out(plain[0].detach(), mesh, {Partial()});
    CHECK(testing::difference(attention({partial, testing::lay_out(plain[1].detach(), mesh, {Shard(2)}),
                                         testing::lay_out(plain[2].detach(), mesh, {Replicate()})},
                                        {}),
                              expected)
              .value_or("") == "");
  }
}

TEST_CASE("attention of three dims is that of one batch", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const auto q = torch::randn({5, 9, 3}, torch::kDouble);
  const auto mask = torch::randn({5, 9, 9}, torch::kDouble);
  const auto split = distribute_tensor(q, mesh, {Shard(1)});
  for (const Method method : both_methods()) {
    const ContextParallel scope("cp", {.method = method});
    const auto out = torch::scaled_dot_product_attention(split, split, split, {}, 0., true, 0.3);
    CHECK(to_string(DTensor(out).placements()) == "S(1)");
    CHECK(torch::allclose(full_tensor(out), torch::scaled_dot_product_attention(q, q, q, {}, 0., true, 0.3)));
    const auto masked =
        torch::scaled_dot_product_attention(split, split, split, distribute_tensor(mask, mesh, {Replicate()}));
    CHECK(torch::allclose(full_tensor(masked), torch::scaled_dot_product_attention(q, q, q, mask)));
  }
}

TEST_CASE("a ContextParallel scope changes nothing on plain tensors, and nothing after it", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors plain = inputs_of({});
  const auto expected = attention(plain, {}).detach();
  Tensors split;
  for (const auto& t : plain) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(0)}));
  {
    const ContextParallel scope("cp");
    CHECK(torch::equal(attention(plain, {}), expected));
  }
  const CommDebugMode comm;
  CHECK(to_string(DTensor(attention(split, {})).placements()) == "S(0)");
  CHECK(comm.total() == 0);
}

TEST_CASE("autocast applies to attention over a sharded sequence", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(2);
  Tensors split;
  for (const auto& t : inputs_of({}, torch::kFloat))
    split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}).requires_grad_());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const Method method : both_methods()) {
    const ContextParallel scope("cp", {.method = method});
    const auto out = attention(split, {});
    CHECK(out.scalar_type() == torch::kBFloat16);
    out.sum().backward();
    CHECK(split[0].grad().scalar_type() == torch::kFloat);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

TEST_CASE("the order of head and tail is undone, on plain and distributed tensors", "[context_parallel]") {
  const auto t = torch::arange(8);
  CHECK(torch::equal(to_head_tail(t, 0, 2), torch::tensor({0, 1, 6, 7, 2, 3, 4, 5})));
  for (const int64_t size : {0, 1, 5, 8, 13}) {
    const auto x = torch::randn({2, size, 3});
    CHECK(torch::equal(from_head_tail(to_head_tail(x, 1, 4), 1, 4), x));
    const auto split = distribute_tensor(x, cp_mesh(4), {Shard(1)});
    CHECK(torch::equal(full_tensor(from_head_tail(to_head_tail(split, -2, 4), 1, 4)), x));
  }
  CHECK_THROWS_WITH(to_head_tail(t, 0, 0), Catch::Contains("`ranks` is 0"));
}

TEST_CASE("a decoder trains context-parallel as on one device", "[context_parallel]") {
  using examples::over;
  examples::DecoderConfig config;
  config.width = 16;
  config.heads = 4;
  const World world = World::local(4);
  config.projection = examples::Projection::kFusedAndCut;
  for (const DeviceMesh& mesh : {DeviceMesh(world, {4}, {"cp"}), DeviceMesh(world, {2, 2}, {"dp", "cp"}),
                                 DeviceMesh(world, {2, 2}, {"cp", "tp"})}) {
    for (const Method method : both_methods()) {
      Placements placements = over(mesh, "cp", Shard(1));
      if (mesh.names()[0] == "dp") placements[0] = Shard(0);
      check_training<examples::Decoder>([=] { return examples::Decoder(config); }, examples::shard_decoder, mesh,
                                        {{doubles({4, 10, config.width}), placements}},
                                        [&](examples::Decoder& model, const Tensors& in) {
                                          const ContextParallel scope("cp", {.method = method});
                                          return model(in[0]).square().mean();
                                        });
    }
    config.projection = examples::Projection::kSeparate;
  }
}

}  // namespace
}  // namespace dtensor
