// moe_dispatch() and moe_combine(): results and gradients of a mixture of experts on one device, with
// one all_to_all each way. Runs in one process with four ranks, and in four processes (//tests/processes).
#include "dtensor/experts.h"

#include <ATen/ops/_grouped_mm.h>
#include <torch/autograd.h>
#include <torch/nn.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::four_ranks;
using torch::Tensor;

constexpr int64_t kTokenWidth = 5, kExpertWidth = 7;

Tensor numbers(c10::IntArrayRef sizes, double phase) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return (torch::arange(numel, torch::kDouble) * 1.7 + phase).sin().view(sizes).clone();
}

struct Layer {
  Tensor router, up,
      down;  // [kTokenWidth, experts], [experts, kTokenWidth, kExpertWidth], [experts, kExpertWidth, kTokenWidth]

  explicit Layer(int64_t experts)
      : router(numbers({kTokenWidth, experts}, 1)),
        up(numbers({experts, kTokenWidth, kExpertWidth}, 2)),
        down(numbers({experts, kExpertWidth, kTokenWidth}, 3)) {
    for (Tensor* t : {&router, &up, &down}) t->requires_grad_();
  }
  Layer(const Layer& plain, const DeviceMesh& mesh, const Placements& experts)
      : router(distribute_tensor(plain.router.detach(), mesh)),
        up(distribute_tensor(plain.up.detach(), mesh, experts)),
        down(distribute_tensor(plain.down.detach(), mesh, experts)) {
    for (Tensor* t : {&router, &up, &down}) t->requires_grad_();
  }
};

// Shares and experts of each token. `ids`: instead of the best ones.
std::pair<Tensor, Tensor> routed(const Tensor& x, const Layer& layer, int64_t k, const Tensor& ids) {
  const Tensor all = torch::softmax(x.matmul(layer.router), -1);
  if (ids.defined()) return {all.gather(-1, ids), ids};
  const auto [shares, best] = all.topk(k, -1);
  return {shares, best};
}

Tensor on_one_device(const Tensor& x, const Layer& layer, int64_t k, const Tensor& forced) {
  const auto [shares, ids] = routed(x, layer, k, forced);
  Tensor y = torch::zeros_like(x);
  for (int64_t e = 0; e < layer.up.size(0); ++e) {
    const Tensor share = (shares * ids.eq(e).to(shares.dtype())).sum(-1, /*keepdim=*/true);
    y = y + share * torch::tanh(x.matmul(layer.up[e])).matmul(layer.down[e]);
  }
  return y;
}

// A rank's rows through its experts, one by one.
Tensor through_experts(const Tensor& rows, const std::vector<int64_t>& counts, const Tensor& up, const Tensor& down) {
  std::vector<Tensor> results{rows.new_zeros({0, kTokenWidth})};
  int64_t begin = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    const Tensor own = rows.narrow(0, begin, counts[e]);
    results.push_back(torch::tanh(own.matmul(up[e])).matmul(down[e]));
    begin += counts[e];
  }
  return torch::cat(results);
}

Tensor on_mesh(const Tensor& x, const Layer& layer, int64_t k, const Tensor& forced) {
  const auto [shares, ids] = routed(x, layer, k, forced);
  const ExpertTokens sent = moe_dispatch(x, ids, {layer.up, layer.down}, "ep");
  std::vector<Tensor> results;
  for (size_t i = 0; i < sent.rows.size(); ++i)
    results.push_back(through_experts(sent.rows[i], sent.counts[i], sent.weights[0][i], sent.weights[1][i]));
  return moe_combine(sent, results, shares);
}

struct Case {
  std::vector<int64_t> mesh;
  std::vector<std::string> names;
  Placements tokens, experts;
  std::vector<int64_t> sizes;  // of the tokens
  int64_t num_experts, k;
};

// `forced`: [..., k] or undefined.
void check_layer(const Case& c, const Tensor& forced = {}) {
  const DeviceMesh mesh(four_ranks(), c.mesh, c.names);
  CAPTURE(mesh.to_string(), to_string(c.tokens), to_string(c.experts), c.sizes, c.num_experts, c.k);
  const Layer plain(c.num_experts), layer(plain, mesh, c.experts);
  Tensor x = numbers(c.sizes, 4).requires_grad_();
  const Tensor distributed = distribute_tensor(x.detach(), mesh, c.tokens).requires_grad_();
  const Tensor ids = forced.defined() ? distribute_tensor(forced, mesh, c.tokens) : Tensor();
  const Tensor seed = numbers(c.sizes, 5);

  const Tensor expected = on_one_device(x, plain, c.k, forced);
  (expected * seed).sum().backward();
  const MeshScope scope(mesh);
  const Tensor y = on_mesh(distributed, layer, c.k, ids);
  CHECK(DTensor(y).placements() == DTensor(distributed).placements());
  (y * distribute_tensor(seed, mesh, c.tokens)).sum().backward();

  CHECK(torch::allclose(full_tensor(y), expected, 1e-10, 1e-12));
  const auto check_gradient = [&](const char* name, const Tensor& t, const Tensor& of_plain) {
    INFO("gradient of " << name);
    REQUIRE(t.grad().defined());
    CHECK(DTensor(t.grad()).placements() == DTensor(t).placements());
    CHECK(torch::allclose(full_tensor(t.grad()), of_plain.grad(), 1e-10, 1e-12));
  };
  check_gradient("tokens", distributed, x);
  check_gradient("router", layer.router, plain.router);
  check_gradient("up", layer.up, plain.up);
  check_gradient("down", layer.down, plain.down);
}

TEST_CASE("experts over four ranks give the result and gradients of one device, with uneven tokens and experts",
          "[experts]") {
  const std::vector<std::string> ep{"ep"};
  for (const auto& [tokens, experts, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {16, 8, 2}, {7, 8, 1}, {13, 6, 3}, {3, 3, 2}, {1, 4, 4}, {0, 4, 2}, {9, 1, 1}})
    check_layer({{4}, ep, {Shard(0)}, {Shard(0)}, {tokens, kTokenWidth}, experts, k});
  check_layer({{4}, ep, {Shard(0)}, {Shard(0)}, {3, 4, kTokenWidth}, 6, 2});
  check_layer({{4}, ep, {Shard(1)}, {Shard(0)}, {2, 6, kTokenWidth}, 6, 2});
}

TEST_CASE("experts over one of two mesh dims give the result and gradients of one device", "[experts]") {
  const Placement s = Shard(0), r = Replicate();
  check_layer({{2, 2}, {"dp", "ep"}, {s, s}, {r, s}, {11, kTokenWidth}, 6, 2});
  check_layer({{2, 2}, {"dp", "ep"}, {s, Shard(1)}, {r, s}, {2, 5, kTokenWidth}, 5, 2});
  check_layer({{2, 2}, {"dp", "ep"}, {s, s}, {s, s}, {11, kTokenWidth}, 6, 2});  // experts over both, gathered over dp
  check_layer({{2, 2}, {"dp", "ep"}, {s, s}, {Shard(1), s}, {11, kTokenWidth}, 6, 2});  // parts of experts
  check_layer({{2, 2}, {"ep", "tp"}, {s, r}, {s, r}, {11, kTokenWidth}, 6, 2});         // the same tokens on two ranks
  check_layer({{2, 2}, {"ep", "tp"}, {s, r}, {r, r}, {11, kTokenWidth}, 3, 1});
  check_layer({{4, 1}, {"dp", "ep"}, {s, r}, {r, r}, {11, kTokenWidth}, 3, 2});  // all experts on every rank
}

TEST_CASE("all tokens that go to one expert, and none, give the result and gradients of one device", "[experts]") {
  const Case one{{4}, {"ep"}, {Shard(0)}, {Shard(0)}, {10, kTokenWidth}, 6, 1};
  for (const int64_t expert : {0, 3, 5}) check_layer(one, torch::full({10, 1}, expert, torch::kLong));
  const Case two{{2, 2}, {"dp", "ep"}, {Shard(0), Shard(0)}, {Replicate(), Shard(0)}, {10, kTokenWidth}, 4, 2};
  check_layer(two, torch::full({10, 2}, 3, torch::kLong));  // both choices are the same expert
}

TEST_CASE("a layer of experts takes one all_to_all each way and one each in backward", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Layer layer(Layer(8), mesh, {Shard(0)});
  const Tensor x = distribute_tensor(numbers({10, kTokenWidth}, 4), mesh, {Shard(0)}).requires_grad_();
  CommDebugMode comm;
  const Tensor y = on_mesh(x, layer, 2, {});
  CHECK(comm.count(Collective::kAllToAll) == 2);
  CHECK(comm.count(Collective::kAllGather) == 1);  // of the counts
  CHECK(comm.bytes(Collective::kAllGather) == 3 * 9 * 8);
  CHECK(comm.total() == 3);
  comm.reset();
  y.sum().backward();
  CHECK(comm.count(Collective::kAllToAll) == 2);
  CHECK(comm.count(Collective::kAllReduce) == 1);  // the router's gradient
  CHECK(comm.total() == 3);
}

TEST_CASE("gradients reach the experts' weights alone where the tokens and the router require none", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Layer plain(4), layer(plain, mesh, {Shard(0)});
  layer.router.requires_grad_(false);
  const Tensor x = numbers({6, kTokenWidth}, 4);
  on_one_device(x, plain, 1, {}).sum().backward();
  on_mesh(distribute_tensor(x, mesh, {Shard(0)}), layer, 1, {}).sum().backward();
  CHECK(torch::allclose(full_tensor(layer.down.grad()), plain.down.grad()));
  CHECK_FALSE(layer.router.grad().defined());
  const at::NoGradGuard no_grad;
  const Tensor y = on_mesh(distribute_tensor(x, mesh, {Shard(0)}), layer, 1, {});
  CHECK_FALSE(y.requires_grad());
  CHECK(torch::allclose(full_tensor(y), on_one_device(x, plain, 1, {})));
}

TEST_CASE("a rank that computes nothing for its lack of rows still sends the gradients of its tokens", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor x = distribute_tensor(numbers({8, kTokenWidth}, 4), mesh, {Shard(0)}).requires_grad_();
  const Tensor ids = distribute_tensor(torch::ones({8, 1}, torch::kLong), mesh, {Shard(0)});
  const Tensor experts = full({4}, 3., mesh, {Shard(0)}, {.dtype = torch::kDouble, .requires_grad = true});
  const ExpertTokens sent = moe_dispatch(x, ids, {experts}, "ep");
  std::vector<Tensor> results;
  for (size_t i = 0; i < sent.rows.size(); ++i) {
    const Tensor& rows = sent.rows[i];
    results.push_back(rows.size(0) == 0 ? torch::zeros({0, kTokenWidth}, torch::kDouble)
                                        : rows * sent.weights[0][i][0]);
  }
  moe_combine(sent, results).sum().backward();
  CHECK(torch::equal(full_tensor(experts.grad()),
                     torch::tensor({0., full_tensor(x).sum().item<double>(), 0., 0.}, torch::kDouble)));
  CHECK(torch::equal(full_tensor(x.grad()), torch::full({8, kTokenWidth}, 3., torch::kDouble)));
}

TEST_CASE("experts without rows that are skipped inside a MeshScope get zeros as gradients", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor ids =
      torch::tensor({1, 0, 3, 1, 5, 1, 3, 0}, torch::kLong).view({8, 1});  // not 2 and 4; rank 3 has none
  Tensor x = numbers({8, kTokenWidth}, 4).requires_grad_(), scales = numbers({6}, 2).requires_grad_();
  (x * scales.index_select(0, ids.view(-1)).unsqueeze(1)).square().sum().backward();
  for (const bool splits_by_size : {true, false}) {
    CAPTURE(splits_by_size);
    const MeshScope scope(mesh);
    const Tensor distributed = distribute_tensor(x.detach(), mesh, {Shard(0)}).requires_grad_();
    const Tensor experts = distribute_tensor(scales.detach(), mesh, {Shard(0)}).requires_grad_();
    const ExpertTokens sent = moe_dispatch(distributed, distribute_tensor(ids, mesh, {Shard(0)}), {experts}, "ep");
    std::vector<Tensor> results;
    for (size_t i = 0; i < sent.rows.size(); ++i) {
      const auto rows = sent.rows[i].split_with_sizes(sent.counts[i]);
      const auto weights = splits_by_size ? sent.weights[0][i].split(1) : sent.weights[0][i].unbind();
      std::vector<Tensor> of_expert{sent.rows[i].new_zeros({0, kTokenWidth})};
      for (size_t e = 0; e < rows.size(); ++e) {
        if (rows[e].size(0) > 0) of_expert.push_back(rows[e] * weights[e]);
      }
      results.push_back(torch::cat(of_expert));
    }
    moe_combine(sent, results).square().sum().backward();
    CHECK(torch::allclose(full_tensor(experts.grad()), scales.grad(), 1e-10, 1e-12));
    CHECK(torch::allclose(full_tensor(distributed.grad()), x.grad(), 1e-10, 1e-12));
  }
}

TEST_CASE("slices of ids, tokens, shares and weights that no operator has read are fetched", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor x = numbers({11, kTokenWidth}, 4), scales = numbers({9}, 2), shares = numbers({11, 1}, 3);
  const Tensor ids = torch::arange(11).remainder(8).view({11, 1});
  const auto slice = [&](const Tensor& t, int64_t begin, int64_t end) {
    return distribute_tensor(t, mesh, {Shard(0)}).slice(0, begin, end);
  };
  const ExpertTokens sent = moe_dispatch(slice(x, 1, 10), slice(ids, 1, 10), {slice(scales, 0, 8)}, "ep");
  std::vector<Tensor> results;
  for (size_t i = 0; i < sent.rows.size(); ++i)
    results.push_back(sent.rows[i] *
                      sent.weights[0][i].repeat_interleave(torch::tensor(sent.counts[i], torch::kLong)).unsqueeze(1));
  const Tensor expected = x * shares * scales.index_select(0, ids.view(-1)).unsqueeze(1);
  CHECK(torch::allclose(full_tensor(moe_combine(sent, results, slice(shares, 1, 10))), expected.slice(0, 1, 10)));
}

TEST_CASE("ids and weights in other layouts than the tokens are redistributed, with their gradients", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "ep"});
  const Tensor x = numbers({6, kTokenWidth}, 4), ids = torch::arange(12).view({6, 2}).remainder(5);
  Tensor shares = numbers({6, 2}, 7).requires_grad_();
  (x * shares.sum(-1, true)).square().sum().backward();
  const Tensor weights = distribute_tensor(shares.detach(), mesh, {Replicate(), Shard(1)}).requires_grad_();
  const ExpertTokens sent = moe_dispatch(distribute_tensor(x, mesh, {Shard(0), Shard(0)}), distribute_tensor(ids, mesh),
                                         {zeros({5}, mesh)}, "ep");
  const Tensor y = moe_combine(sent, sent.rows, weights);
  CHECK(torch::allclose(full_tensor(y), x * shares.sum(-1, true)));
  y.square().sum().backward();
  CHECK(torch::allclose(full_tensor(weights.grad()), shares.grad()));
}

TEST_CASE("gradients of gradients of the tokens are those of one device", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Layer plain(4), layer(plain, mesh, {Shard(0)});
  const Tensor x = numbers({6, kTokenWidth}, 4).requires_grad_();
  const Tensor distributed = distribute_tensor(x.detach(), mesh, {Shard(0)}).requires_grad_();
  const auto penalty = [](const Tensor& y, const Tensor& of) {
    return torch::autograd::grad({y.square().sum()}, {of}, {}, std::nullopt, /*create_graph=*/true)[0].square().sum();
  };
  penalty(on_one_device(x, plain, 2, {}), x).backward();
  penalty(on_mesh(distributed, layer, 2, {}), distributed).backward();
  CHECK(torch::allclose(full_tensor(distributed.grad()), x.grad(), 1e-10, 1e-12));
  CHECK(torch::allclose(full_tensor(layer.up.grad()), plain.up.grad(), 1e-10, 1e-12));
}

struct LayerModule : torch::nn::Module {
  explicit LayerModule(const Layer& values) : layer(values) {
    register_parameter("router", layer.router);
    register_parameter("up", layer.up);
    register_parameter("down", layer.down);
  }
  Layer layer;
};

TEST_CASE("experts of a fully sharded module give the gradients of one device", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "ep"});
  const int64_t dim = GENERATE(0, 1);
  const Layer plain(6);
  LayerModule module((Layer(6)));
  distribute_module(module, mesh, [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
    shard_parameter(m, "up", on, {Replicate(), Shard(0)});
    shard_parameter(m, "down", on, {Replicate(), Shard(0)});
  });
  fully_shard(module, mesh, {.mesh_dim = "dp", .dim = dim});
  CHECK(DTensor(module.layer.up).placements()[0] == (dim == 0 ? StridedShard(0, 2) : Shard(1)));
  const Tensor x = numbers({7, kTokenWidth}, 4);
  for (int step = 1; step <= 2; ++step) {  // the second adds to the gradients of the first
    on_one_device(x, plain, 2, {}).square().sum().backward();
    on_mesh(distribute_tensor(x, mesh, {Shard(0), Shard(0)}), module.layer, 2, {}).square().sum().backward();
    for (const auto& [of_mesh, of_plain] :
         {std::pair(module.layer.up, plain.up), {module.layer.down, plain.down}, {module.layer.router, plain.router}}) {
      CHECK(DTensor(of_mesh.grad()).placements() == DTensor(of_mesh).placements());
      CHECK(torch::allclose(full_tensor(of_mesh.grad()), of_plain.grad(), 1e-10, 1e-12));
    }
  }
}

TEST_CASE("offsets are the ends of the rows of each expert, and rows are sorted by expert", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor x = torch::arange(12, torch::kDouble).view({12, 1}), ids = torch::arange(12).remainder(6).view({12, 1});
  const ExpertTokens sent =
      moe_dispatch(distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(ids.to(torch::kInt), mesh, {Shard(0)}),
                   {zeros({6}, mesh)}, "ep");
  for (size_t i = 0; i < sent.rows.size(); ++i) {
    const int64_t rank = mesh.local_ranks()[i];
    CAPTURE(rank);
    if (rank == 3) {  // six experts are 2, 2, 2 and 0
      CHECK(sent.rows[i].size(0) == 0);
      CHECK(sent.offsets[i].size(0) == 0);
      continue;
    }
    const double first = 2. * static_cast<double>(rank);
    CHECK(torch::equal(sent.rows[i].view(-1), torch::tensor({first, first + 6, first + 1, first + 7}, torch::kDouble)));
    CHECK(torch::equal(sent.offsets[i], torch::tensor({2, 4}, torch::kInt)));
    CHECK(sent.counts[i] == std::vector<int64_t>{2, 2});
  }
}

TEST_CASE("_grouped_mm of a rank's rows, weights and offsets is the product of each row with its expert", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor x = numbers({10, 16}, 1).to(torch::kFloat), w = numbers({6, 16, 8}, 2).to(torch::kFloat);
  const Tensor ids = torch::arange(10).remainder(4).view({10, 1});  // some experts, and the last rank, have no rows
  const ExpertTokens sent =
      moe_dispatch(distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(ids, mesh, {Shard(0)}),
                   {distribute_tensor(w, mesh, {Shard(0)})}, "ep");
  std::vector<Tensor> results;
  for (size_t i = 0; i < sent.rows.size(); ++i)
    results.push_back(at::_grouped_mm(sent.rows[i], sent.weights[0][i], sent.offsets[i]));
  const Tensor expected = x.unsqueeze(1).matmul(w.index_select(0, ids.view(-1))).squeeze(1);
  CHECK(torch::allclose(full_tensor(moe_combine(sent, results)), expected, 1e-5, 1e-5));
}

TEST_CASE("arguments that do not fit are errors that name them", "[experts]") {
  using Catch::Contains;
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "ep"});
  const Placements rows{Shard(0), Shard(0)};
  const Tensor x = distribute_tensor(numbers({8, 4}, 0), mesh, rows);
  const Tensor ids = distribute_tensor(torch::zeros({8, 2}, torch::kLong), mesh, rows);
  const Tensor weight = zeros({4, 2}, mesh);
  const auto text = [&](const Tensor& t, const Tensor& i, const char* dim = "ep") {
    return error_text([&] { moe_dispatch(t, i, {weight}, dim); });
  };
  CHECK_THAT(text(numbers({8, 4}, 0), ids), Contains("[moe_dispatch]") && Contains("not distributed"));
  CHECK_THAT(text(x, ids, "pp"), Contains("no dim is named pp"));
  CHECK_THAT(text(redistribute(x, {Shard(0), Replicate()}), ids), Contains("is R over mesh dim 'ep'"));
  CHECK_THAT(text(redistribute(x, {Shard(1), Shard(0)}), ids), Contains("is S(1) over mesh dim 'dp'"));
  CHECK_THAT(text(x, ids.to(torch::kFloat)), Contains("expert_ids are Float: integers"));
  CHECK_THAT(text(x, zeros({8, 2}, DeviceMesh(four_ranks(), {4}, {"ep"}), {}, {.dtype = torch::kLong})),
             Contains("is on another mesh than the tokens"));
  CHECK_THAT(text(x, ids.narrow(1, 0, 0)), Contains("expert_ids") && Contains("the choices of a token"));
  const auto of_weights = [&](const std::vector<Tensor>& weights) {
    return error_text([&] { moe_dispatch(x, ids, weights, "ep"); });
  };
  CHECK_THAT(of_weights({}), Contains("weights is empty"));
  CHECK_THAT(of_weights({torch::zeros({4, 2})}), Contains("not distributed"));
  CHECK_THAT(of_weights({weight, zeros({5, 2}, mesh)}), Contains("as the first weight, 4"));
  CHECK_THAT(of_weights({zeros({0, 2}, mesh)}), Contains("above 0"));
  CHECK_THAT(of_weights({zeros({4}, DeviceMesh(four_ranks(), {4}, {"ep"}))}), Contains("is on another mesh"));

  const ExpertTokens sent = moe_dispatch(x, ids, {weight}, "ep");
  std::vector<Tensor> more_rows;
  for (const Tensor& t : sent.rows) more_rows.push_back(torch::cat({t, t.new_zeros({1, 4})}));
  CHECK_THAT(error_text([&] { moe_combine(sent, more_rows); }), Contains("one row for each of the"));
  CHECK_THAT(error_text([&] { moe_combine(sent, {}); }), Contains("0 tensors of rows"));
  CHECK_THAT(error_text([&] { moe_combine({}, {}); }), Contains("sent is empty"));
  CHECK_THAT(error_text([&] { moe_combine(sent, sent.rows, ids.narrow(1, 0, 1)); }), Contains("of which there are 2"));
}

TEST_CASE("an id that is no expert is the same error on all ranks of its group", "[experts]") {
  const DeviceMesh mesh(four_ranks(), {4}, {"ep"});
  const Tensor weight = zeros({4}, mesh, {Shard(0)});
  for (const int64_t wrong : {-1, 4}) {
    Tensor ids = torch::zeros({8, 1}, torch::kLong);
    ids[5] = wrong;
    const Tensor x = distribute_tensor(numbers({8, 4}, 0), mesh, {Shard(0)}),
                 on = distribute_tensor(ids, mesh, {Shard(0)});
    CHECK_THAT(error_text([&] { moe_dispatch(x, on, {weight}, "ep"); }),
               Catch::Contains("expert_ids: rank 2 has 1 that are negative or not below the number of experts, 4"));
    CHECK(moe_dispatch(x, on.clamp(0, 3), {weight}, "ep").rows[0].size(1) == 4);  // the mesh is usable
  }
}

}  // namespace
}  // namespace dtensor
