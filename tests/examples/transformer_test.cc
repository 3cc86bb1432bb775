// A transformer trained on a mesh learns what it learns on one device: with every optimizer, in every layout.
#include <torch/nn.h>
#include <torch/optim.h>

#include "comm/scope.h"
#include "dtensor/dtensor.h"
#include "examples/lm_model.h"
#include "examples/text_data.h"
#include "mesh/memory_meter.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using examples::Batch;
using examples::LanguageModel;

examples::LMConfig config() {
  examples::LMConfig c;
  c.vocab = 23;  // divides by no mesh here
  c.context = 6;
  c.width = 12;
  c.heads = 2;
  return c;
}

// Column- and row-parallel over every mesh dim but "dp".
void shard_model(const std::string& path, torch::nn::Module& module, const DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto put = [&](const char* parameter, const Placement& placement) {
    Placements placements;
    for (const auto& dim : mesh.names()) placements.push_back(dim == "dp" ? Replicate() : placement);
    shard_parameter(module, parameter, mesh, placements);
  };
  if (name == "tokens" || name == "head") put("weight", Shard(0));
  if (name == "wq" || name == "wk" || name == "wv" || name == "up") put("weight", Shard(0)), put("bias", Shard(0));
  if (name == "wo" || name == "down") put("weight", Shard(1));
}

Placements batch_layout(const DeviceMesh& mesh) {
  Placements placements;
  for (const auto& dim : mesh.names()) placements.push_back(dim == "dp" ? Shard(0) : Replicate());
  return placements;
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

template <typename Optimizer, typename Options>
MakeOptimizer make(Options options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

const std::vector<std::pair<std::string, MakeOptimizer>>& optimizers() {
  using namespace torch::optim;
  static const std::vector<std::pair<std::string, MakeOptimizer>> all = {
      {"SGD", make<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", make<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"AdamW", make<AdamW>(AdamWOptions(1e-2))},
      {"Adagrad", make<Adagrad>(AdagradOptions(1e-2))},
      {"RMSprop", make<RMSprop>(RMSpropOptions(1e-2).momentum(0.5).centered(true))},
  };
  return all;
}

torch::Tensor loss_of(LanguageModel& model, const Batch& batch) {
  const auto logits = model->forward(batch.inputs);
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), batch.targets.view({-1}));
}

std::vector<Batch> batches(int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 200; ++i) ids.push_back((i * i + 3 * i) % 23);
  return examples::make_batches(ids, /*batch=*/4, /*length=*/6, count, /*seed=*/7);
}

LanguageModel make_model() {
  torch::manual_seed(3);
  LanguageModel model(config());
  model->to(torch::kDouble);
  return model;
}

struct Step {
  int64_t forward = 0, backward = 0, optimizer = 0;
};

// One step; counts what each phase communicated.
double step(LanguageModel& model, torch::optim::Optimizer& optimizer, const Batch& batch, double max_norm,
            Step* counts = nullptr) {
  CommDebugMode comm;
  optimizer.zero_grad();
  const auto loss = loss_of(model, batch);
  if (counts) counts->forward = comm.total(), comm.reset();
  loss.backward();
  if (counts) counts->backward = comm.total(), comm.reset();
  if (max_norm > 0) torch::nn::utils::clip_grad_norm_(model->parameters(), max_norm);
  comm.reset();
  optimizer.step();
  if (counts) counts->optimizer = comm.total();
  return loss.item<double>();
}

void check_all_distributed(LanguageModel& model, torch::optim::Optimizer& optimizer) {
  for (const auto& p : model->named_parameters()) {
    INFO(p.key());
    REQUIRE(is_dtensor(p.value()));
    REQUIRE(p.value().grad().defined());
    REQUIRE(is_dtensor(p.value().grad()));
    CHECK(to_string(DTensor(p.value().grad()).placements()) == to_string(DTensor(p.value()).placements()));
  }
  CHECK(optimizer.state().size() == model->parameters().size());
  const auto check_state = [](const torch::Tensor& t) { CHECK((!t.defined() || is_dtensor(t))); };
  for (const auto& [key, state] : optimizer.state()) {
    if (const auto* s = dynamic_cast<const torch::optim::AdamWParamState*>(state.get()))
      check_state(s->exp_avg()), check_state(s->exp_avg_sq());
    if (const auto* s = dynamic_cast<const torch::optim::AdamParamState*>(state.get()))
      check_state(s->exp_avg()), check_state(s->exp_avg_sq()), check_state(s->max_exp_avg_sq());
    if (const auto* s = dynamic_cast<const torch::optim::SGDParamState*>(state.get()))
      check_state(s->momentum_buffer());
    if (const auto* s = dynamic_cast<const torch::optim::AdagradParamState*>(state.get())) check_state(s->sum());
    if (const auto* s = dynamic_cast<const torch::optim::RMSpropParamState*>(state.get()))
      check_state(s->square_avg()), check_state(s->momentum_buffer()), check_state(s->grad_avg());
  }
}

void compare(const DeviceMesh& mesh, const MakeOptimizer& make_optimizer, double max_norm, int steps) {
  LanguageModel plain = make_model(), sharded = make_model();
  distribute_module(*sharded, mesh, shard_model);
  auto plain_optimizer = make_optimizer(plain->parameters()), sharded_optimizer = make_optimizer(sharded->parameters());
  uint64_t settled = 0;
  const auto data = batches(steps);
  for (int i = 0; i < steps; ++i) {
    const double expected = step(plain, *plain_optimizer, data[i], max_norm);
    MeshScope scope(mesh);
    const auto split = batch_layout(mesh);
    const Batch batch{distribute_tensor(data[i].inputs, mesh, split), distribute_tensor(data[i].targets, mesh, split)};
    Step counts;
    const double got = step(sharded, *sharded_optimizer, batch, max_norm, &counts);
    INFO("step " << i);
    REQUIRE(std::abs(got - expected) < 1e-9);
    CHECK(counts.optimizer == 0);
    if (i == 1) settled = strategy_cache(mesh.world()).stats().misses;
    if (i > 1) CHECK(strategy_cache(mesh.world()).stats().misses == settled);
  }
  check_all_distributed(sharded, *sharded_optimizer);
  const auto expected = plain->named_parameters();
  for (const auto& p : sharded->named_parameters()) {
    INFO(p.key());
    CHECK(torch::allclose(full_tensor(p.value()), expected[p.key()], 1e-9, 1e-9));
  }
}

}  // namespace

TEST_CASE("transformer: every optimizer gives the losses of one device for 10 steps") {
  for (const auto& [name, make_optimizer] : optimizers()) {
    INFO(name);
    const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
    compare(mesh, make_optimizer, 0, 10);
  }
}

TEST_CASE("transformer: other meshes, uneven heads, gradient clipping") {
  const auto& adamw = optimizers()[2].second;
  for (const auto& [sizes, names] :
       std::vector<std::pair<std::vector<int64_t>, std::vector<std::string>>>{{{4}, {"tp"}},
                                                                              {{3}, {"tp"}},
                                                                              {{4}, {"dp"}},
                                                                              {{2, 3}, {"dp", "tp"}},
                                                                              {{2, 2}, {"tp", "cp"}},
                                                                              {{1, 2}, {"dp", "tp"}}}) {
    int64_t ranks = 1;
    for (int64_t s : sizes) ranks *= s;
    const DeviceMesh mesh(World::local(ranks), sizes, names);
    INFO(mesh.to_string());
    compare(mesh, adamw, 0.5, 4);
  }
}

TEST_CASE("transformer: the gradients of a data-parallel step cost one collective") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  LanguageModel model = make_model();
  distribute_module(*model, mesh, shard_model);
  MeshScope scope(mesh);
  const auto data = batches(1);
  const auto split = batch_layout(mesh);
  const auto loss =
      loss_of(model, {distribute_tensor(data[0].inputs, mesh, split), distribute_tensor(data[0].targets, mesh, split)});
  CommDebugMode comm;
  loss.backward();
  CHECK(comm.count(Collective::kAllReduce) == 1);
  CHECK(comm.total() == 1);
}

TEST_CASE("transformer: an abstract world plans the same step") {
  const auto run = [](const World& world, const std::vector<int64_t>& sizes) {
    const DeviceMesh mesh(world, sizes, {"dp", "tp"});
    LanguageModel model = make_model();
    distribute_module(*model, mesh, shard_model);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    MeshScope scope(mesh);
    const auto data = batches(1);
    const auto split = batch_layout(mesh);
    const Batch batch{distribute_tensor(data[0].inputs, mesh, split), distribute_tensor(data[0].targets, mesh, split)};
    world.memory().reset_peak();
    CommDebugMode comm;
    const auto loss = loss_of(model, batch);
    loss.backward();
    optimizer.step();
    std::vector<std::string> log;
    for (const auto& e : comm.events()) {
      log.push_back(c10::str(to_string(e.collective), " ", e.cause.op, " ", e.cause.argument, " ", e.cause.module_path,
                             " ", e.mesh_dims, " ", e.group_size, " ", e.bytes, " ", e.backward));
    }
    for (const auto& p : model->named_parameters()) {
      log.push_back(c10::str(p.key(), DTensor(p.value()).spec().to_short_string(),
                             DTensor(p.value().grad()).spec().to_short_string()));
    }
    return std::make_pair(log, world.memory().peak_bytes());
  };
  const auto real = run(World::local(4), {2, 2});
  const auto planned = run(World::abstract(4), {2, 2});
  CHECK(real.first == planned.first);
  CHECK(real.second == planned.second);
  CHECK(real.second > 0);

  const auto large = run(World::abstract(4096), {64, 64});
  CHECK(large.first.size() > 0);
  CHECK(large.second < 2 * real.second);  // smaller parts, but buffers for what passes between more ranks
}

}  // namespace dtensor
