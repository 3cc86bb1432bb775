// Products in chunks next to their exchanges: values, gradients, collectives and their order. Also runs with a process
// per rank (//tests/processes).
#include "dtensor/overlap_communication.h"

#include <torch/nn.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dtensor.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/four_ranks.h"
#include "tests/testing/traffic.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using testing::Counts;
using testing::counts_of;
using testing::error_text;
using testing::four_ranks;
using testing::LanguageModel;
using testing::Mlp;
using torch::Tensor;

const DeviceMesh& tp_mesh() {
  static const DeviceMesh mesh(four_ranks(), {4}, {"tp"});
  return mesh;
}
const DeviceMesh& dp_tp_mesh() {
  static const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "tp"});
  return mesh;
}

ParallelPlan mlp_plan() { return {{"up", ColwiseParallel()}, {"down", RowwiseParallel({.output = Shard(1)})}}; }

constexpr int64_t kWidth = 6, kMlpHidden = 10;

Mlp make_mlp() {
  torch::manual_seed(1);
  Mlp model(kWidth, kMlpHidden);
  model->to(torch::kDouble);
  return model;
}

Tensor values(std::vector<int64_t> sizes) {
  const int64_t n = c10::multiply_integers(sizes);
  return torch::arange(n, torch::kDouble).sin().view(sizes);
}

// [batch, tokens, width], the tokens over tp, the batch over dp where there is one.
Tensor tokens_on(const DeviceMesh& mesh, const Tensor& x) {
  Placements placements{Shard(1)};
  if (mesh.ndim() == 2) placements = {Shard(0), Shard(1)};
  return distribute_tensor(x, mesh, placements).requires_grad_();
}

struct ShardedMlp {
  Mlp model = make_mlp();
  explicit ShardedMlp(const DeviceMesh& mesh) { parallelize_module(*model, mesh, mlp_plan(), {.mesh_dim = "tp"}); }
};

template <typename Model>
void check_gradients(const Model& sharded, const Model& plain) {
  const auto expected = plain->named_parameters();
  for (const auto& p : sharded->named_parameters()) {
    INFO(p.key());
    REQUIRE(p.value().grad().defined());
    CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
    CHECK(torch::allclose(full_tensor(p.value().grad()), expected[p.key()].grad(), 1e-10, 1e-12));
  }
}

// A step in the scope against the plain model: result, gradients of the input and of all parameters.
void check_step(const DeviceMesh& mesh, const std::vector<int64_t>& sizes, int64_t chunks) {
  CAPTURE(mesh.to_string(), sizes, chunks);
  const Tensor x = values(sizes), plain_x = x.clone().requires_grad_();
  Mlp plain = make_mlp();
  const Tensor expected = plain(plain_x), factors = values(sizes).cos();
  (expected * factors).sum().backward();

  ShardedMlp sharded(mesh);
  const Tensor in = tokens_on(mesh, x);
  Tensor out;
  {
    const OverlapCommunication scope({.chunks = chunks});
    out = sharded.model->forward(in);
  }
  if (x.numel() > 0) CHECK(DTensor(out).placements() == DTensor(in).placements());
  CHECK(torch::allclose(full_tensor(out), expected, 1e-10, 1e-12));
  (out * distribute_tensor(factors, mesh)).sum().backward();
  CHECK(torch::allclose(full_tensor(in.grad()), plain_x.grad(), 1e-10, 1e-12));
  check_gradients(sharded.model, plain);
}

struct Step {
  Counts forward, backward;
  int64_t bytes = 0;
  double flops = 0;
};

// What a step communicates in a scope of that many chunks; nullopt: without a scope.
Step measured(const DeviceMesh& mesh, const std::vector<int64_t>& sizes, std::optional<int64_t> chunks) {
  ShardedMlp sharded(mesh);
  const Tensor x = tokens_on(mesh, values(sizes));
  std::optional<OverlapCommunication> scope;
  if (chunks) scope.emplace(OverlapOptions{.chunks = *chunks});
  CommDebugMode comm;
  const Tensor loss = sharded.model->forward(x).square();
  Step step;
  step.forward = counts_of(comm);
  step.bytes = comm.bytes();
  step.flops = comm.flops();
  comm.reset();
  loss.backward(torch::ones_like(loss));
  step.backward = counts_of(comm);
  step.bytes += comm.bytes();
  step.flops += comm.flops();
  return step;
}

// The collectives and the matrix products in their order.
class Record : public internal::CommListener {
 public:
  Record() : guard_([this](internal::Scope& s) { s.listeners.push_back(this); }) {}
  void on_comm(const CommEvent& event, bool before) override {
    if (before) lines.push_back(std::string(to_string(event.collective)));
  }
  void on_work(const internal::WorkEvent& event) override {
    if (event.flops > 0) lines.emplace_back("product");
    bytes += event.bytes;
  }
  std::vector<std::string> lines;
  int64_t bytes = 0;  // that operators read and write

 private:
  internal::ScopeGuard guard_;
};
using Lines = std::vector<std::string>;

const Lines kGathersOfFour = {"all_gather", "all_gather", "product", "all_gather",
                              "product",    "all_gather", "product", "product"};
const Lines kScattersOfFour = {"product", "reduce_scatter", "product", "reduce_scatter",
                               "product", "reduce_scatter", "product", "reduce_scatter"};

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("OverlapCommunication: an MLP has the values and gradients of one device, also with uneven and empty parts") {
  for (const DeviceMesh& mesh : {tp_mesh(), dp_tp_mesh()}) {
    for (const int64_t chunks : {2, 4, 7}) {
      check_step(mesh, {2, 16, kWidth}, chunks);
      check_step(mesh, {2, 13, kWidth}, chunks);  // not a multiple of ranks x chunks
      check_step(mesh, {3, 5, kWidth}, chunks);   // fewer rows than chunks, and a rank without
    }
    check_step(mesh, {9, 6, kWidth}, 4);  // cut along the batch
    check_step(mesh, {2, 1, kWidth}, 4);  // one row
    check_step(mesh, {2, 0, kWidth}, 4);
  }
}

TEST_CASE(
    "OverlapCommunication: each exchange is `chunks` collectives of together as many bytes, forward and backward") {
  const DeviceMesh& mesh = tp_mesh();
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 16, kWidth}, {8, 4, kWidth}}) {
    CAPTURE(sizes);
    const Step plain = measured(mesh, sizes, std::nullopt), cut = measured(mesh, sizes, 4);
    CHECK(plain.forward == Counts{{"all_gather", 1}, {"reduce_scatter", 1}});
    CHECK(plain.backward == Counts{{"all_gather", 1}, {"all_reduce", 1}, {"reduce_scatter", 1}});  // the last bias'
    CHECK(cut.forward == Counts{{"all_gather", 4}, {"reduce_scatter", 4}});
    CHECK(cut.backward == Counts{{"all_gather", 4}, {"all_reduce", 1}, {"reduce_scatter", 4}});
    CHECK(cut.bytes == plain.bytes);
    CHECK(cut.flops == plain.flops);
    CHECK(measured(mesh, sizes, 1).forward == plain.forward);
  }
}

TEST_CASE("OverlapCommunication: fewer rows than chunks are as many collectives as a rank has rows") {
  const Step cut = measured(tp_mesh(), {1, 10, kWidth}, 4);  // 3, 3, 3 and 1 rows
  CHECK(cut.forward == Counts{{"all_gather", 3}, {"reduce_scatter", 3}});
  CHECK(cut.bytes == measured(tp_mesh(), {1, 10, kWidth}, std::nullopt).bytes);
  CHECK(measured(tp_mesh(), {1, 4, kWidth}, 4).forward == Counts{{"all_gather", 1}, {"reduce_scatter", 1}});
}

TEST_CASE("OverlapCommunication: with dp x tp the gradients are reduced over dp as without the scope") {
  const std::vector<int64_t> sizes{4, 16, kWidth};
  const Step plain = measured(dp_tp_mesh(), sizes, std::nullopt), cut = measured(dp_tp_mesh(), sizes, 4);
  CHECK(cut.forward == Counts{{"all_gather", 4}, {"reduce_scatter", 4}});
  CHECK(cut.backward.at("all_reduce") == plain.backward.at("all_reduce"));
  CHECK(cut.backward.at("all_gather") == 4);
  CHECK(cut.backward.at("reduce_scatter") == 4);
  CHECK(cut.bytes == plain.bytes);
}

TEST_CASE("OverlapCommunication: an exchange begins before the product of the chunk before, or after that of its own") {
  ShardedMlp sharded(tp_mesh());
  const Tensor x = tokens_on(tp_mesh(), values({1, 16, kWidth}));
  Tensor out;
  {
    const OverlapCommunication scope({.chunks = 4});
    const Record record;
    out = sharded.model->forward(x);
    CHECK(record.lines == kGathersOfFour + kScattersOfFour);
  }
  const Record record;
  out.backward(torch::ones_like(out));
  // After each of them the product that is the weight's gradient.
  CHECK(record.lines == kGathersOfFour + Lines{"product"} + kScattersOfFour + Lines{"product", "all_reduce"});
}

TEST_CASE("OverlapCommunication: without gradients, with frozen parameters or inputs values and gradients are right") {
  Mlp plain = make_mlp();
  const Tensor x = values({2, 13, kWidth});
  ShardedMlp sharded(tp_mesh());
  const OverlapCommunication scope({.chunks = 3});
  const Tensor in = tokens_on(tp_mesh(), x);
  {
    const torch::NoGradGuard no_grad;
    CommDebugMode comm;
    const Tensor out = sharded.model->forward(in);
    CHECK(counts_of(comm) == Counts{{"all_gather", 3}, {"reduce_scatter", 3}});
    CHECK(!out.requires_grad());
    CHECK(torch::allclose(full_tensor(out), plain(x), 1e-10, 1e-12));
  }
  for (Mlp model : {plain, sharded.model}) {
    for (const Tensor& t : {model->up->weight, model->down->bias}) t.set_requires_grad(false);
  }
  plain(x).sum().backward();
  sharded.model->forward(in.detach()).sum().backward();
  for (const char* name : {"up.bias", "down.weight"}) {
    CHECK(torch::allclose(full_tensor(sharded.model->named_parameters()[name].grad()),
                          plain->named_parameters()[name].grad(), 1e-10, 1e-12));
  }
  CHECK(!sharded.model->up->weight.grad().defined());
}

TEST_CASE("OverlapCommunication: a forward in checkpoint() is computed again in chunks, with the right gradients") {
  const Tensor x = values({2, 13, kWidth}), plain_x = x.clone().requires_grad_();
  Mlp plain = make_mlp();
  plain(plain_x).square().sum().backward();
  ShardedMlp sharded(tp_mesh());
  const Tensor in = tokens_on(tp_mesh(), x);
  Tensor loss;
  {
    const OverlapCommunication scope({.chunks = 3});
    Mlp model = sharded.model;
    loss = checkpoint([model](const Tensor& t) mutable { return model(t); }, in).square().sum();
  }
  CommDebugMode comm;
  loss.backward();
  CHECK(comm.counts().at("all_gather") >= 6);
  check_gradients(sharded.model, plain);
  CHECK(torch::allclose(full_tensor(in.grad()), plain_x.grad(), 1e-10, 1e-12));
}

TEST_CASE("OverlapCommunication: a sequence-parallel transformer trains as on one device, with the same bytes") {
  const auto make = [] {
    torch::manual_seed(2);
    LanguageModel model(11, 8);
    model->to(torch::kDouble);
    return model;
  };
  const ParallelPlan plan = testing::sequence_parallel_plan();
  const Tensor ids = torch::arange(2 * 10).remainder(11).view({2, 10});
  LanguageModel plain = make();
  const Tensor expected = plain(ids);
  expected.square().mean().backward();
  for (const DeviceMesh& mesh : {tp_mesh(), dp_tp_mesh()}) {
    CAPTURE(mesh.to_string());
    int64_t bytes[2], gathers[2];
    for (const int64_t chunks : {1, 2}) {
      LanguageModel model = make();
      parallelize_module(*model, mesh, plan, {.mesh_dim = "tp"});
      const OverlapCommunication scope({.chunks = chunks});
      Placements placements(mesh.ndim(), Replicate());
      if (mesh.ndim() == 2) placements[0] = Shard(0);
      CommDebugMode comm;
      const Tensor out = model(distribute_tensor(ids, mesh, placements, std::nullopt));
      out.square().mean().backward();
      bytes[chunks - 1] = comm.bytes();
      gathers[chunks - 1] = comm.count(Collective::kAllGather);
      CHECK(torch::allclose(full_tensor(out), expected, 1e-10, 1e-12));
      check_gradients(model, plain);
      check_styles_ran(*model);
    }
    CHECK(bytes[1] == bytes[0]);
    CHECK(gathers[1] > gathers[0]);
  }
}

TEST_CASE("OverlapCommunication: linear() with a bias adds it once, and has its gradient") {
  Mlp plain = make_mlp();
  ShardedMlp sharded(tp_mesh());
  const Tensor x = values({2, 13, kWidth});
  const auto two_linears = [](const Mlp& m, const Tensor& t) {  // torch::nn::Linear adds its bias by itself
    const Tensor hidden = torch::linear(t, m->up->weight, m->up->bias);
    return torch::linear(hidden.tanh(), m->down->weight, m->down->bias);
  };
  const Tensor expected = two_linears(plain, x);
  expected.square().sum().backward();
  const Tensor in = tokens_on(tp_mesh(), x);
  const OverlapCommunication scope({.chunks = 3});
  CommDebugMode comm;
  const Tensor out = two_linears(sharded.model, in);
  CHECK(counts_of(comm) == Counts{{"all_gather", 3}, {"reduce_scatter", 3}});
  CHECK(torch::allclose(full_tensor(out), expected, 1e-10, 1e-12));
  out.square().sum().backward();
  check_gradients(sharded.model, plain);
}

TEST_CASE("OverlapCommunication: fully sharded parameters are gathered once, and have the gradients of one device") {
  const Tensor x = values({4, 13, kWidth}), plain_x = x.clone().requires_grad_();
  Mlp plain = make_mlp();
  plain(plain_x).square().sum().backward();
  Counts forward[2], backward[2];
  for (const int64_t chunks : {1, 3}) {
    CAPTURE(chunks);
    ShardedMlp sharded(dp_tp_mesh());
    fully_shard(*sharded.model, dp_tp_mesh(), {.mesh_dim = "dp"});
    const Tensor in = tokens_on(dp_tp_mesh(), x);
    const OverlapCommunication scope({.chunks = chunks});
    CommDebugMode comm;
    const Tensor loss = sharded.model->forward(in).square().sum();
    forward[chunks / 3] = counts_of(comm);
    comm.reset();
    loss.backward();
    backward[chunks / 3] = counts_of(comm);
    check_gradients(sharded.model, plain);
    CHECK(torch::allclose(full_tensor(in.grad()), plain_x.grad(), 1e-10, 1e-12));
  }
  CHECK(forward[1]["all_gather"] == forward[0]["all_gather"] + 2);
  CHECK(forward[1]["reduce_scatter"] == 3);
  CHECK(backward[1]["all_gather"] == backward[0]["all_gather"] + 2);
  CHECK(backward[1]["reduce_scatter"] == backward[0]["reduce_scatter"] + 2);
}

TEST_CASE("OverlapCommunication: products with bfloat16 copies of fully sharded parameters run in chunks") {
  ShardedMlp sharded(dp_tp_mesh());
  fully_shard(*sharded.model, dp_tp_mesh(), {.mesh_dim = "dp", .mixed_precision = {.param_dtype = torch::kBFloat16}});
  const Tensor x = values({4, 16, kWidth}).to(torch::kBFloat16);
  const OverlapCommunication scope({.chunks = 4});
  CommDebugMode comm;
  const Tensor out = sharded.model->forward(tokens_on(dp_tp_mesh(), x));
  CHECK(comm.count(Collective::kReduceScatter) == 4);
  CHECK(out.scalar_type() == torch::kBFloat16);
  CHECK(torch::allclose(full_tensor(out).to(torch::kDouble), make_mlp()(x.to(torch::kDouble)), 0.05, 0.05));
  out.sum().backward();
  CHECK(sharded.model->up->weight.grad().scalar_type() == torch::kDouble);
}

TEST_CASE("OverlapCommunication: products of styles with mixed precision run in chunks, with the same values") {
  Tensor results[2], gradients[2];
  for (const int64_t chunks : {1, 4}) {
    CAPTURE(chunks);
    Mlp model = make_mlp();
    parallelize_module(*model, dp_tp_mesh(), mlp_plan(),
                       {.mesh_dim = "tp", .mixed_precision = {.param_dtype = torch::kBFloat16}});
    const OverlapCommunication scope({.chunks = chunks});
    CommDebugMode comm;
    const Tensor out = model->forward(tokens_on(dp_tp_mesh(), values({4, 16, kWidth})));
    CHECK(comm.count(Collective::kAllGather) == chunks);
    CHECK(comm.count(Collective::kReduceScatter) == chunks);
    CHECK(out.scalar_type() == torch::kBFloat16);
    out.sum().backward();
    CHECK(model->up->weight.grad().scalar_type() == torch::kDouble);
    results[chunks / 4] = full_tensor(out).to(torch::kDouble);
    gradients[chunks / 4] = full_tensor(model->up->weight.grad());
  }
  CHECK(torch::allclose(results[1], results[0], 0.02, 0.02));
  CHECK(torch::allclose(gradients[1], gradients[0], 0.05, 0.05));
}

TEST_CASE("OverlapCommunication: products that a module writes by hand follow its style in chunks") {
  struct ByHandImpl : nn::Module {
    ByHandImpl() {
      weight = register_parameter("weight", values({kWidth, 8}));
      bias = register_parameter("bias", values({8}));
    }
    Tensor weight, bias;
  };
  const auto by_hand = std::make_shared<ByHandImpl>(), plain = std::make_shared<ByHandImpl>();
  parallelize_module(*by_hand, tp_mesh(),
                     {{"", ParameterStyle({{"weight", Shard(1)}, {"bias", Shard(0)}}, {.input = Replicate()})}});
  const std::vector<std::function<Tensor(const Tensor&, const ByHandImpl&)>> products = {
      [](const Tensor& x, const ByHandImpl& m) { return x.mm(m.weight); },
      [](const Tensor& x, const ByHandImpl& m) { return torch::matmul(x, m.weight); },
      [](const Tensor& x, const ByHandImpl& m) { return torch::addmm(m.bias, x, m.weight); }};
  for (const auto& product : products) {
    const Tensor x = values({14, kWidth}), plain_x = x.clone().requires_grad_();
    const Tensor in = distribute_tensor(x, tp_mesh(), {Shard(0)}).requires_grad_();
    by_hand->zero_grad();
    plain->zero_grad();
    const OverlapCommunication scope({.chunks = 2});
    CommDebugMode comm;
    const Tensor out = product(in, *by_hand), expected = product(plain_x, *plain);
    CHECK(counts_of(comm) == Counts{{"all_gather", 2}});
    CHECK(DTensor(out).placements() == Placements{Shard(1)});
    CHECK(torch::allclose(full_tensor(out), expected, 1e-10, 1e-12));
    out.square().sum().backward();
    expected.square().sum().backward();
    CHECK(torch::allclose(full_tensor(in.grad()), plain_x.grad(), 1e-10, 1e-12));
    CHECK(torch::allclose(full_tensor(by_hand->weight.grad()), plain->weight.grad(), 1e-10, 1e-12));
  }
}

TEST_CASE("OverlapCommunication: chunks read and write what the whole product does, and the matrix each time") {
  int64_t bytes[2];
  for (const int64_t chunks : {1, 4}) {
    const auto linear = std::make_shared<nn::LinearImpl>(nn::LinearOptions(kWidth, 8).bias(false));
    linear->to(torch::kDouble);
    parallelize_module(*linear, tp_mesh(), {{"", ColwiseParallel()}});
    const Tensor x = distribute_tensor(values({16, kWidth}), tp_mesh(), {Shard(0)});
    const OverlapCommunication scope({.chunks = chunks});
    const torch::NoGradGuard no_grad;
    const Record record;
    linear->forward(x);
    bytes[chunks / 4] = record.bytes;
  }
  CHECK(bytes[1] == bytes[0] + 3 * 8 * kWidth * 2);  // a rank has two of eight rows of the weight
}

TEST_CASE("OverlapCommunication: a product over no features is the bias") {
  struct BiasedImpl : nn::Module {
    Tensor weight = register_parameter("weight", torch::zeros({8, 0}, torch::kDouble)),
           bias = register_parameter("bias", values({8}));
  };
  BiasedImpl module;
  const Tensor bias = module.bias.detach().clone();
  parallelize_module(module, tp_mesh(),
                     {{"", ParameterStyle({{"weight", Shard(0)}, {"bias", Shard(0)}}, {.input = Replicate()})}});
  const Tensor x = distribute_tensor(torch::zeros({16, 0}, torch::kDouble), tp_mesh(), {Shard(0)});
  const OverlapCommunication scope({.chunks = 2});
  const Tensor y = torch::addmm(module.bias, x, module.weight.t());
  CHECK(torch::equal(full_tensor(y), bias.expand({16, 8})));
}

TEST_CASE("OverlapCommunication: rows that a product itself gathers are multiplied in chunks, and gathered once") {
  const Tensor a = values({13, kWidth}), b = values({kWidth, 64}), c = values({64});
  const Tensor expected = a.mm(b);
  Counts counts[2];
  int64_t bytes[2];
  for (const int64_t chunks : {1, 3}) {
    CAPTURE(chunks);
    const Tensor x = distribute_tensor(a, tp_mesh(), {Shard(0)}), w = distribute_tensor(b, tp_mesh(), {Shard(1)});
    const Tensor bias = distribute_tensor(c, tp_mesh(), {Shard(0)});
    const OverlapCommunication scope({.chunks = chunks});
    const Record record;
    CommDebugMode comm;
    const Tensor y = x.mm(w), z = torch::addmm(bias, x, w);
    counts[chunks / 3] = counts_of(comm);
    bytes[chunks / 3] = comm.bytes();
    CHECK(DTensor(y).placements() == Placements{Shard(1)});
    CHECK(torch::allclose(full_tensor(y), expected, 1e-10, 1e-12));
    CHECK(torch::allclose(full_tensor(z), expected + c, 1e-10, 1e-12));
    if (chunks == 3) {
      CHECK(Lines(record.lines.begin(), record.lines.begin() + 7) ==
            Lines{"all_gather", "all_gather", "product", "all_gather", "product", "product", "product"});
      const Tensor own = distribute_tensor(a, tp_mesh(), {Shard(0)});
      CHECK(torch::allclose(full_tensor(torch::addmm(bias, own, w)), expected + c, 1e-10, 1e-12));
    }
  }
  CHECK(counts[0] == Counts{{"all_gather", 1}});
  CHECK(counts[1] == Counts{{"all_gather", 3}});
  CHECK(bytes[1] == bytes[0]);
}

TEST_CASE("OverlapCommunication: what it does not cut computes as outside") {
  ShardedMlp sharded(tp_mesh());
  const Tensor x = values({2, 16, kWidth});
  const auto counts = [&](const Tensor& in) {
    CommDebugMode comm;
    (void)sharded.model->forward(in);
    return counts_of(comm);
  };
  const OverlapCommunication scope({.chunks = 4});
  const Tensor whole = distribute_tensor(x, tp_mesh());
  CHECK(counts(whole) == Counts{{"reduce_scatter", 4}});  // there is nothing to gather
  {
    const OverlapCommunication inner({.chunks = 1});
    CHECK(counts(whole) == Counts{{"reduce_scatter", 1}});
  }
  const Tensor features = distribute_tensor(x, tp_mesh(), {Shard(2)});
  CHECK(counts(features) == Counts{{"all_gather", 1}, {"reduce_scatter", 4}});  // of what the product sums over
}

TEST_CASE("OverlapCommunication: a number of chunks below 1, and second derivatives, are errors") {
  CHECK_THROWS_AS(OverlapCommunication({.chunks = 0}), c10::ValueError);
  CHECK_THAT(error_text([] { OverlapCommunication({.chunks = -2}); }),
             Catch::Contains("[OverlapCommunication] chunks is -2") && Catch::Contains("at least 1"));
  ShardedMlp sharded(tp_mesh());
  const OverlapCommunication scope;
  const Tensor in = tokens_on(tp_mesh(), values({2, 16, kWidth}));
  const Tensor loss = sharded.model->forward(in).square().sum();
  CHECK_THAT(error_text([&] { loss.backward({}, std::nullopt, /*create_graph=*/true); }),
             Catch::Contains("[OverlapCommunication] a product in chunks has no second derivatives"));
}

}  // namespace dtensor
