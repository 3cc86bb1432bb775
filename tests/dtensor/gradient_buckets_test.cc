// Options of gradient buckets: size, order, dtype and overlap change which collectives run and when, not the gradients.
// Also runs with a process per rank (//tests/processes).
#include "dtensor/gradient_buckets.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using testing::four_ranks;
using torch::Tensor;

constexpr int64_t kIn = 5, kHidden = 7, kOut = 3, kRows = 10;  // over 4 ranks: none is even

torch::nn::Sequential make_model() {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(kIn, kHidden), torch::nn::Tanh(), torch::nn::Linear(kHidden, kHidden),
                              torch::nn::Tanh(), torch::nn::Linear(kHidden, kOut));
  model->to(torch::kDouble);
  return model;
}

Tensor batch(int64_t step) { return torch::arange(kRows * kIn, torch::kDouble).add(step).view({kRows, kIn}).sin(); }
Tensor loss_of(torch::nn::Sequential& model, const Tensor& x) { return model->forward(x).square().mean(); }

// The options of the test's world until the end of the block.
class Buckets {
 public:
  explicit Buckets(const GradientBucketOptions& options) { set_gradient_buckets(four_ranks(), options); }
  ~Buckets() { set_gradient_buckets(four_ranks(), {}); }
};

struct DataParallel {
  DeviceMesh mesh{four_ranks(), {4}, {"dp"}};
  torch::nn::Sequential model = make_model();

  DataParallel() { distribute_module(*model, mesh); }
  Tensor x(int64_t step = 0) const { return distribute_tensor(batch(step), mesh, {Shard(0)}); }
  // In the order of registration, not in that of backward.
  std::vector<Tensor> in_order() const { return model->parameters(); }
};

// "0.bias and 1 more", of every reduction.
std::vector<std::string> reductions(const CommDebugMode& comm) {
  std::vector<std::string> arguments;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gradient") arguments.push_back(e.cause.argument);
  }
  return arguments;
}

void check_gradients(torch::nn::Sequential& model, torch::nn::Sequential& plain) {
  const auto expected = plain->named_parameters();
  for (const auto& p : model->named_parameters()) {
    INFO(p.key());
    REQUIRE(p.value().grad().defined() == expected[p.key()].grad().defined());
    if (!p.value().grad().defined()) continue;
    CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
    CHECK(torch::allclose(full_tensor(p.value().grad()), expected[p.key()].grad(), 1e-10, 1e-12));
  }
}

}  // namespace

TEST_CASE("gradient buckets: options are those that were set, and a limit alone keeps the others") {
  DataParallel dp;
  const GradientBucketOptions before = gradient_buckets(four_ranks());
  CHECK(before.max_bytes == kDefaultGradientBucketBytes);
  CHECK(!before.reduce_dtype);
  CHECK(!before.overlap);
  CHECK(before.order.empty());
  const Buckets buckets({100, torch::kFloat, true, dp.in_order()});
  limit_gradient_bucket_bytes(four_ranks(), 200);
  const GradientBucketOptions after = gradient_buckets(four_ranks());
  CHECK(after.max_bytes == 200);
  CHECK(after.reduce_dtype == torch::kFloat);
  CHECK(after.overlap);
  REQUIRE(after.order.size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(after.order[i].is_same(dp.in_order()[i]));
  CHECK(gradient_buckets(World::abstract(4)).order.empty());  // of another world
}

TEST_CASE("gradient buckets: options that cannot be are errors and change nothing") {
  using Catch::Contains;
  DataParallel dp;
  const Buckets buckets({.max_bytes = 100, .order = dp.in_order()});
  const auto set = [](const GradientBucketOptions& options) { set_gradient_buckets(four_ranks(), options); };
  const auto with_order = [&](std::vector<Tensor> order) { return set({.order = std::move(order)}); };
  const Tensor w = dp.in_order()[0];
  CHECK_THROWS_WITH(set({.max_bytes = -1}), Contains("[set_gradient_buckets] max_bytes is -1: give a limit"));
  CHECK_THROWS_WITH(set({.reduce_dtype = torch::kInt}), Contains("reduce_dtype is Int: give a floating-point"));
  CHECK_THROWS_WITH(with_order({w, Tensor()}), Contains("order[1] is undefined"));
  CHECK_THROWS_WITH(with_order({w, torch::ones({2})}), Contains("order[1] is a plain tensor"));
  CHECK_THROWS_WITH(with_order({w, w * 2}), Contains("order[1] is f64[7, 5]") && Contains("a result of operators"));
  CHECK_THROWS_WITH(with_order({w, w}), Contains("order[1], f64[7, 5]") && Contains("is listed twice"));
  const DeviceMesh other(World::abstract(2), {2}, {"dp"});
  CHECK_THROWS_WITH(with_order({ones({2}, other)}), Contains("of another world"));
  CHECK(gradient_buckets(four_ranks()).max_bytes == 100);
  CHECK(gradient_buckets(four_ranks()).order.size() == 6);
}

TEST_CASE("gradient buckets: with an order their members do not depend on the graph") {
  DataParallel dp;
  // 0: 280 B and 56 B; 2: 392 B and 56 B; 4: 168 B and 24 B.
  const Buckets buckets({.max_bytes = 450, .order = dp.in_order()});
  const auto chain = [&] { return loss_of(dp.model, dp.x()); };
  const auto other_way = [&] {  // the last layer first
    const auto& last = dp.model[4]->as<torch::nn::Linear>();
    const Tensor y =
        torch::matmul(last->forward(dp.x().matmul(dp.model[0]->as<torch::nn::Linear>()->weight.t())), last->weight);
    return dp.model[2]->as<torch::nn::Linear>()->forward(y).square().mean() +
           (dp.x().sum(1, true) * dp.model[0]->as<torch::nn::Linear>()->bias).sum();
  };
  for (int twice = 0; twice < 2; ++twice) {
    for (const bool is_chain : {true, false}) {
      CAPTURE(twice, is_chain);
      dp.model->zero_grad();
      const Tensor loss = is_chain ? chain() : other_way();
      CommDebugMode comm;
      loss.backward();
      auto members = reductions(comm);
      for (std::string& m : members)
        m = m.substr(0, 1) + m.substr(m.find(' ') == std::string::npos ? m.size() : m.find(' '));
      std::sort(members.begin(), members.end());
      CHECK(members == std::vector<std::string>{"0 and 1 more", "2 and 1 more", "4 and 1 more"});
    }
  }
  limit_gradient_bucket_bytes(four_ranks(), 800);  // cuts the same order into others: 784 B and 192 B
  dp.model->zero_grad();
  CommDebugMode comm;
  chain().backward();
  REQUIRE(reductions(comm).size() == 2);
  CHECK_THAT(reductions(comm)[0], Catch::StartsWith("4.") && Catch::EndsWith(" and 1 more"));
  CHECK_THAT(reductions(comm)[1], Catch::EndsWith(" and 3 more"));
}

TEST_CASE("gradient buckets: a bucket of the order is reduced when its last gradient has arrived, or in the end") {
  DataParallel dp;
  const auto p = dp.in_order();
  const Buckets buckets({.order = {p[0], p[5]}});  // the first weight and the last bias; the others by arrival
  CommDebugMode comm;
  loss_of(dp.model, dp.x()).backward();
  CHECK(reductions(comm).size() == 2);
  CHECK(reductions(comm)[0] == "4.bias and 1 more");
  CHECK_THAT(reductions(comm)[1], Catch::EndsWith(" and 3 more"));
  torch::nn::Sequential plain = make_model();
  loss_of(plain, batch(0)).backward();
  check_gradients(dp.model, plain);

  dp.model->zero_grad();
  CommDebugMode without_first;  // gets no gradient
  const Tensor h = ones({kRows, kHidden}, dp.mesh, {Shard(0)}, {.dtype = torch::kDouble});
  const Tensor y = dp.model[4]->as<torch::nn::Linear>()->forward(h);
  y.square().sum().backward();
  CHECK(reductions(without_first) == std::vector<std::string>{"4.bias", "4.weight"});
  CHECK(torch::allclose(full_tensor(p[5].grad()), 2 * full_tensor(y).sum(0)));

  dp.model->zero_grad();
  p[0].set_requires_grad(false);  // frozen: not waited for
  CommDebugMode frozen;
  loss_of(dp.model, dp.x()).backward();
  CHECK(reductions(frozen)[0] == "4.bias");
}

TEST_CASE("gradient buckets: the order holds for parameters that got new data, and ends with the next options") {
  DataParallel dp;
  const Buckets buckets({.max_bytes = 0, .order = dp.in_order()});
  dp.model->to(torch::kFloat);
  const auto count = [&] {
    CommDebugMode comm;
    loss_of(dp.model, dp.x().to(torch::kFloat)).backward();
    return reductions(comm).size();
  };
  CHECK(count() == 6);
  set_gradient_buckets(four_ranks(), {});
  CHECK(count() == 1);
}

TEST_CASE("gradient buckets: floating-point gradients are reduced in reduce_dtype and cast back") {
  const DeviceMesh mesh(four_ranks(), {4}, {"dp"});
  const Buckets buckets({.reduce_dtype = torch::kBFloat16});
  const auto leaf = [&] { return zeros({4}, mesh, {Replicate()}).requires_grad_(); };
  // Rank 0 adds 257, which is 256 in bfloat16, and the others 1 each: 256 + 3 is 260 there.
  const Tensor x = distribute_tensor(torch::tensor({257.f, 1.f, 1.f, 1.f}).view({4, 1}), mesh, {Shard(0)});
  const Tensor now = leaf(), later = leaf();
  CommDebugMode comm;
  (x * now).sum().backward();
  {
    DelayGradientReduction delay;
    (x * later).sum().backward();
  }
  reduce_gradients({later});
  REQUIRE(comm.events().size() == 2);
  for (const CommEvent& e : comm.events()) CHECK(e.dtype == torch::kBFloat16);
  for (const Tensor& w : {now, later}) {
    CHECK(w.grad().scalar_type() == torch::kFloat);
    CHECK(torch::equal(full_tensor(w.grad()), torch::full({4}, 260.f)));
  }
}

TEST_CASE("gradient buckets: gradients that are reduced at once are reduced in reduce_dtype, too") {
  const DeviceMesh mesh(four_ranks(), {4}, {"dp"});
  const Buckets buckets({.reduce_dtype = torch::kFloat});
  const Tensor x0 = torch::arange(3200, torch::kDouble).view({400, 8}).sin();
  Tensor w0 = torch::arange(24, torch::kDouble).view({8, 3}).cos().requires_grad_();
  const Tensor w = distribute_tensor(w0.detach(), mesh, {Shard(0)}).requires_grad_();  // smaller than its gradient
  CommDebugMode comm;
  distribute_tensor(x0, mesh, {Shard(0)}).mm(w).square().sum().backward();
  CHECK(reductions(comm).size() == 1);
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gradient") CHECK(e.dtype == torch::kFloat);
  }
  x0.mm(w0).square().sum().backward();
  CHECK(w.grad().scalar_type() == torch::kDouble);
  CHECK(torch::allclose(full_tensor(w.grad()), w0.grad(), 1e-5));
}

TEST_CASE("gradient buckets: bfloat16 gradients reduced in float32, with those of fully_shard in their own") {
  DataParallel dp;
  dp.model->to(torch::kBFloat16);
  fully_shard(*dp.model[2], dp.mesh);
  const Buckets buckets({.reduce_dtype = torch::kFloat});
  CommDebugMode comm;
  loss_of(dp.model, dp.x().to(torch::kBFloat16)).backward();
  std::vector<std::string> seen;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gradient") seen.push_back(std::string(to_string(e.collective)) + " " + c10::toString(e.dtype));
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<std::string>{"all_reduce Float", "reduce_scatter BFloat16"});
  for (const Tensor& p : dp.model->parameters()) CHECK(p.grad().scalar_type() == torch::kBFloat16);
}

namespace {

// Every option by itself, and all at once.
std::vector<GradientBucketOptions> all_options(const std::vector<Tensor>& order) {
  return {{},
          {.max_bytes = 0},
          {.max_bytes = 300, .order = order},
          {.reduce_dtype = torch::kDouble},
          {.overlap = true},
          {.max_bytes = 0, .overlap = true},
          {.max_bytes = 450, .reduce_dtype = torch::kDouble, .overlap = true, .order = order}};
}

// Four steps of AdamW equal those on one device: a plain step, one that adds up two backwards, one that runs a graph
// twice, and one that reduces later.
void check_training(torch::nn::Sequential& model, const std::function<Tensor(int64_t)>& x) {
  torch::nn::Sequential plain = make_model();
  for (auto* m : {&model, &plain}) {
    (*m)[2]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
    (*m)->zero_grad();
  }
  const auto options = torch::optim::AdamWOptions(0.01);
  torch::optim::AdamW optimizer(model->parameters(), options), expected(plain->parameters(), options);
  for (int64_t step = 0; step < 4; ++step) {
    for (auto* o : {&optimizer, &expected}) o->zero_grad(/*set_to_none=*/step < 2);
    for (int64_t k = 0; k < (step == 1 ? 2 : 1); ++k) {
      const Tensor loss = loss_of(model, x(step + k)), plain_loss = loss_of(plain, batch(step + k));
      for (int64_t again = step == 2 ? 1 : 0; again >= 0; --again) {
        plain_loss.backward({}, /*retain_graph=*/again > 0);
        if (step == 3) {
          DelayGradientReduction delay;
          loss.backward();
        } else {
          loss.backward({}, /*retain_graph=*/again > 0);
        }
      }
    }
    if (step == 3) reduce_gradients(model->parameters());
    check_gradients(model, plain);
    optimizer.step();
    expected.step();
  }
  const auto wanted = plain->parameters(), got = model->parameters();
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(torch::allclose(full_tensor(got[i]), wanted[i], 1e-9, 1e-11));
}

}  // namespace

TEST_CASE("gradient buckets: steps with every option equal those of one device, under data parallelism") {
  for (size_t i = 0; i < all_options({}).size(); ++i) {
    CAPTURE(i);
    DataParallel dp;
    const Buckets buckets(all_options(dp.in_order())[i]);
    check_training(dp.model, [&](int64_t step) { return dp.x(step); });
  }
}

TEST_CASE("gradient buckets: steps with every option equal those of one device, with data and tensor parallelism") {
  for (size_t i = 0; i < all_options({}).size(); ++i) {
    CAPTURE(i);
    const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "tp"});
    torch::nn::Sequential model = make_model();
    parallelize_module(*model, mesh, {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}}, {.mesh_dim = "tp"});
    const Buckets buckets(all_options(model->parameters())[i]);
    check_training(model, [&](int64_t step) { return distribute_tensor(batch(step), mesh, {Shard(0), Replicate()}); });
  }
}

TEST_CASE("gradient buckets: steps with every option equal those of one device, beside groups of fully_shard") {
  for (size_t i = 0; i < all_options({}).size(); ++i) {
    CAPTURE(i);
    const DeviceMesh mesh(four_ranks(), {4}, {"dp"});
    torch::nn::Sequential model = make_model();
    const bool before = i % 2 == 0;
    if (!before) fully_shard(*model[2], mesh);
    distribute_module(*model, mesh);
    const Buckets buckets(all_options(model->parameters())[i]);
    if (before) fully_shard(*model[2], mesh);
    check_training(model, [&](int64_t step) { return distribute_tensor(batch(step), mesh, {Shard(0)}); });
  }
}

TEST_CASE("gradient buckets: neither an order nor a group of fully_shard keeps parameters alive") {
  const MemoryMeter& memory = four_ranks().memory();
  for (const bool is_group : {false, true}) {
    CAPTURE(is_group);
    const int64_t before = memory.live_bytes();
    for (int round = 0; round < 2; ++round) {
      DataParallel dp;
      if (is_group) fully_shard(*dp.model, dp.mesh);
      if (!is_group) set_gradient_buckets(four_ranks(), {.max_bytes = 0, .order = dp.in_order()});
      if (round == 1) loss_of(dp.model, dp.x()).backward();  // unused parameters, too
    }
    CHECK(memory.live_bytes() == before);
    CHECK(gradient_buckets(four_ranks()).order.empty());
    set_gradient_buckets(four_ranks(), {});
  }
}

}  // namespace dtensor
