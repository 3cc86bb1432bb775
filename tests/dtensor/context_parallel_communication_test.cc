// What attention over a sharded sequence communicates, computes and holds, and its errors.
#include <torch/csrc/autograd/autograd.h>

#include "mesh/memory_meter.h"
#include "tests/dtensor/attention_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

TEST_CASE("ring attention moves keys and values once around the ring, and their gradients once", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const AttentionCase c{{.heads = 8, .key_heads = 2, .length = 16, .keys = 16}, true, {.method = Method::kRing}};
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
    const AttentionCase c{{.length = 64, .keys = 64}, true, options};
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
  const AttentionCase c{
      {.batch = 1, .heads = 2, .key_heads = 2, .length = 512, .keys = 512, .features = 16, .out_features = 16},
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

}  // namespace
}  // namespace dtensor
