// Attention over a sequence that is sharded over a mesh dim, beside one device.
#include "dtensor/context_parallel.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/head_tail.h"
#include "examples/models/decoder.h"
#include "examples/models/layouts.h"
#include "mesh/memory_meter.h"
#include "ops/network/attention_tiles.h"
#include "tests/examples/against_one_device.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor {
namespace {

using internal::PartRun;
using Method = ContextParallelMethod;
using testing::difference;

struct Sizes {
  int64_t batch = 2, heads = 4, key_heads = 4, length = 12, keys = 12, features = 3, out_features = 3;
};

struct Case {
  Sizes sizes = {};
  bool causal = false;
  ContextParallelOptions options = {};
  std::vector<int64_t> mask = {};  // its sizes; none: no mask
  bool boolean_mask = false;
};

torch::Tensor attention(const Tensors& t, const Case& c) {
  return torch::scaled_dot_product_attention(t[0], t[1], t[2], t.size() > 3 ? std::optional(t[3]) : std::nullopt, 0.,
                                             c.causal, std::nullopt, c.sizes.heads != c.sizes.key_heads);
}

Tensors inputs_of(const Case& c, torch::ScalarType dtype = torch::kDouble) {
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

// Results and gradients with `placements` of query, key and value, beside those of one device.
void check_attention(const Case& c, const DeviceMesh& mesh, const Placements& placements, double tolerance = 1e-11,
                     torch::ScalarType dtype = torch::kDouble) {
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

DeviceMesh cp_mesh(int64_t n) { return DeviceMesh(World::local(n), {n}, {"cp"}); }

std::vector<Method> both_methods() { return {Method::kRing, Method::kAllToAll}; }

}  // namespace

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
                const auto order = head_tail ? internal::head_tail_runs(size, n) : std::vector<Run>();
                return internal::part_runs(internal::shard_runs({Run{0, size}}, p, n, rank), order);
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

TEST_CASE("ring attention moves keys and values once around the ring, and their gradients once", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Case c{{.heads = 8, .key_heads = 2, .length = 16, .keys = 16}, true, {.method = Method::kRing}};
  Tensors split;
  for (const auto& t : inputs_of(c)) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}).requires_grad_());
  const int64_t block = 2 * 2 * 2 * 4 * 3 * 8;  // key and value: batch, heads, length / 4, features, bytes
  const ContextParallel scope("cp", c.options);
  const CommDebugMode comm;
  const auto out = attention(split, c);
  CHECK(comm.total() == 3);
  CHECK(comm.count(Collective::kPermute) == 3);
  CHECK(comm.bytes() == 3 * block);
  CHECK(comm.implicit_count() == 0);
  out.backward(distribute_tensor(torch::ones(out.sizes(), torch::kDouble), mesh, {Shard(2)}, std::nullopt));
  CHECK(comm.count(Collective::kPermute) == 9);
  CHECK(comm.total() == 9);
  CHECK(comm.bytes() == 9 * block);
  CHECK(comm.to_string().find("ring attention key, value: permute(cp) x3") != std::string::npos);
  for (const CommEvent& e : comm.events()) CHECK(e.received_bytes == e.bytes);
}

TEST_CASE("without gradients of key and value, backward of ring attention moves none", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  Tensors split;
  for (const auto& t : inputs_of({})) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}));
  split[0].requires_grad_();
  const ContextParallel scope("cp", {.method = Method::kRing});
  const CommDebugMode comm;
  attention(split, {}).sum().backward();
  CHECK(comm.count(Collective::kPermute) == 6);
  CHECK(!split[1].grad().defined());
}

TEST_CASE("all-to-all attention exchanges its inputs together, and its result", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  Tensors split;
  for (const auto& t : inputs_of({})) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}).requires_grad_());
  const ContextParallel scope("cp", {.method = Method::kAllToAll});
  const CommDebugMode comm;
  const auto out = attention(split, {});
  CHECK(comm.count(Collective::kAllToAll) == 2);
  out.backward(distribute_tensor(torch::ones(out.sizes(), torch::kDouble), mesh, {Shard(2)}, std::nullopt));
  CHECK(comm.count(Collective::kAllToAll) == 4);
  CHECK(comm.total() == 4);
  const int64_t part = 2 * 4 * 3 * 3 * 8;
  CHECK(comm.bytes() == 2 * 4 * part * 3 / 4);
}

TEST_CASE("beside tensor parallel, all-to-all attention exchanges over its own mesh dim alone", "[context_parallel]") {
  const World world = World::local(8);
  for (const auto& [mesh, placements] :
       {std::pair(DeviceMesh(world, {2, 4}, {"tp", "cp"}), Placements{Shard(1), Shard(2)}),
        std::pair(DeviceMesh(world, {4, 2}, {"cp", "tp"}), Placements{Shard(2), Shard(1)})}) {
    Tensors split;
    for (const auto& t : inputs_of({{.heads = 8, .key_heads = 8}}))
      split.push_back(distribute_tensor(t.detach(), mesh, placements));
    const ContextParallel scope("cp", {.method = Method::kAllToAll});
    const CommDebugMode comm;
    attention(split, {{.heads = 8, .key_heads = 8}});
    CHECK(comm.total() == 2);
    for (const CommEvent& e : comm.events()) CHECK(e.mesh_dims == "cp");
  }
}

TEST_CASE("head-tail order shares the work of causal attention evenly", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const auto share = [&](const ContextParallelOptions& options, const Placement& p) {
    const Case c{{.length = 64, .keys = 64}, true, options};
    Tensors split;
    for (const auto& t : inputs_of(c)) split.push_back(distribute_tensor(t.detach(), mesh, {p}));
    const ContextParallel scope("cp", options);
    const CommDebugMode comm;
    attention(split, c);
    return comm.work_share();
  };
  CHECK(share({.method = Method::kRing, .load_balance = true}, Shard(2)) == 1);
  CHECK(share({.method = Method::kRing}, Shard(2)) == Approx(16 * (49 + 64) / 2. / (64 * 65 / 2 / 4)));
  CHECK(share({.method = Method::kRing}, StridedShard(2, 8)) < 1.15);
}

TEST_CASE("no rank holds more than two blocks of key and value besides its own", "[context_parallel]") {
  const World world = World::local(8);
  const DeviceMesh mesh(world, {8}, {"cp"});
  const Case c{{.batch = 1, .heads = 2, .key_heads = 2, .length = 512, .keys = 512, .features = 16, .out_features = 16},
               false,
               {.method = Method::kRing}};
  Tensors split;
  for (const auto& t : inputs_of(c)) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}));
  const auto peak = [&] {
    world.memory().reset_peak();
    const int64_t before = world.memory().live_bytes();
    attention(split, c);
    return world.memory().peak_bytes() - before;
  };
  const int64_t part = 2 * 64 * 16 * 8;
  const int64_t gathered = peak();
  CHECK(gathered >= 2 * 8 * part);
  const ContextParallel scope("cp", c.options);
  CHECK(peak() <= 5 * part);
}

TEST_CASE("the cheapest method is the ring for few key heads, and the all-to-all for latency", "[context_parallel]") {
  const auto chosen = [](const Sizes& s, int64_t n) {
    const DeviceMesh mesh(World::abstract(n), {n}, {"cp"});
    Tensors t = {zeros({s.batch, s.heads, s.length, s.features}, mesh, {Shard(2)}),
                 zeros({s.batch, s.key_heads, s.keys, s.features}, mesh, {Shard(2)}),
                 zeros({s.batch, s.key_heads, s.keys, s.out_features}, mesh, {Shard(2)})};
    const ContextParallel scope("cp");
    const CommDebugMode comm;
    attention(t, {s, false});
    return comm.count(Collective::kPermute) > 0 ? Method::kRing : Method::kAllToAll;
  };
  CHECK(chosen({1, 64, 1, 4096, 4096, 64, 64}, 2) == Method::kRing);
  CHECK(chosen({1, 16, 16, 1024, 1024, 64, 64}, 8) == Method::kAllToAll);
  CHECK(chosen({1, 4, 4, 1024, 1024, 64, 64}, 8) == Method::kRing);  // fewer heads than ranks
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
      CHECK(difference(out, expected).value_or("") == "");
    }
    const auto partial = testing::lay_out(plain[0].detach(), mesh, {Partial()});
    CHECK(difference(attention({partial, testing::lay_out(plain[1].detach(), mesh, {Shard(2)}),
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

TEST_CASE("a checkpointed part is computed again with the same ring", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors plain = inputs_of({});
  const auto x = distribute_tensor(plain[0].detach(), mesh, {Shard(2)}).requires_grad_();
  const auto y = x.detach().clone().requires_grad_();
  const auto attend = [](const torch::Tensor& t) {
    return torch::scaled_dot_product_attention(t * 2, t, t + 1, {}, 0., true);
  };
  const CommDebugMode comm;
  torch::Tensor loss;
  {
    const ContextParallel scope("cp", {.method = Method::kRing});
    loss = checkpoint(attend, x).square().sum();
    attend(y).square().sum().backward();
  }
  CHECK(comm.count(Collective::kPermute) == 12);
  loss.backward();
  CHECK(comm.count(Collective::kPermute) == 21);
  CHECK(comm.count(Collective::kAllGather) == 0);
  CHECK(torch::equal(full_tensor(x.grad()), full_tensor(y.grad())));
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

TEST_CASE("what attention over a sharded sequence cannot compute is an error before any communication",
          "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  Tensors split;
  for (const auto& t : inputs_of({})) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}).requires_grad_());
  const auto& q = split[0];
  const CommDebugMode comm;
  CHECK_THROWS_WITH(ContextParallel(""), Catch::Contains("`mesh_dim` is empty"));
  {
    const ContextParallel scope("tp");
    CHECK_THROWS_WITH(attention(split, {}), Catch::Contains("mesh(cp=4), which has no mesh dim `tp`"));
  }
  const ContextParallel scope("cp", {.method = Method::kAllToAll});
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q, {}, 0.1), Catch::Contains("`dropout_p` is 0.1"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q.slice(1, 0, 2), q.slice(1, 0, 2)),
                    Catch::Contains("enable_gqa"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q.to(torch::kFloat)), Catch::Contains("of one dtype"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q.slice(1, 0, 2), q.slice(1, 0, 2), q.slice(1, 0, 2)),
                    Catch::Contains("has 2 heads for 4 ranks; use kRing"));
  const auto mask = zeros({12, 12}, mesh, {Replicate()}, {.dtype = torch::kDouble});
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q, mask, 0., true), Catch::Contains("is_causal false"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q, mask.slice(0, 0, 5)), Catch::Contains("`attn_mask`"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q, torch::zeros({12, 12}, torch::kDouble)),
                    Catch::Contains("'attn_mask' is a plain tensor"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(q, q, q, mask.requires_grad_()),
                    Catch::Contains("`attn_mask` requires grad"));
  CHECK(comm.total() == 0);
  const ContextParallel ring("cp", {.method = Method::kRing});
  CHECK_THROWS_WITH(torch::autograd::grad({attention(split, {}).sum()}, {q}, {}, std::nullopt, /*create_graph=*/true),
                    Catch::Contains("no second derivatives"));
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
  for (const auto& projection : {examples::Projection::kSeparate, examples::Projection::kFusedAndCut}) {
    config.projection = projection;
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
    }
  }
}

}  // namespace dtensor
