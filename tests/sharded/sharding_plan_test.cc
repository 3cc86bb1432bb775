// Plans for whole modules: parameters, Sharders that take a submodule's place, outputs.
#include "sharded/sharding_plan.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "plan/redistribute_plan.h"
#include "plan/spec.h"
#include "sharded/dtensor_bridge.h"
#include "sharded/factories.h"
#include "sharded/op_registry.h"
#include "sharded/output_hooks.h"
#include "tests/sharded/lookup_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::sharded {
namespace {

using Catch::Contains;
using testing::error_text;

// What a parent calls, whichever module stands there.
struct BagCollection : torch::nn::Module {
  using Module::Module;
  virtual at::Tensor forward(const at::Tensor& ids) = 0;
};

void add(torch::nn::ModuleDict& dict, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  dict->update(std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{{name, std::move(module)}});
}

// Every bag on the same input, the results one below the other.
struct EmbeddingBags : BagCollection {
  EmbeddingBags(int64_t bags, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < bags; ++i) {
      add(tables, "embedding_bag_" + std::to_string(i),
          torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(rows, columns).mode(torch::kSum)).ptr());
    }
    register_module("embedding_bags", tables);
  }
  at::Tensor forward(const at::Tensor& ids) override {
    std::vector<at::Tensor> pooled;
    for (const auto& bag : tables->values()) pooled.push_back(bag->as<torch::nn::EmbeddingBag>()->forward(ids));
    return at::cat(pooled);
  }
  torch::nn::ModuleDict tables;
};

struct ShardedBags : BagCollection {
  ShardedBags(const std::shared_ptr<EmbeddingBags>& bags, int64_t row_wise) : tables(bags->tables) {
    ShardingPlan plan;
    for (size_t i = 0; i < tables->size(); ++i) {
      plan.plan.emplace_back("embedding_bag_" + std::to_string(i) + ".weight",
                             chunks(static_cast<int64_t>(i) < row_wise ? 0 : 1, kAll));
    }
    shard_module(*tables, plan, test_world());
    register_module("embedding_bags", tables);
  }
  at::Tensor forward(const at::Tensor& ids) override {
    std::vector<at::Tensor> pooled;
    for (const auto& bag : tables->values()) pooled.push_back(bag->as<torch::nn::EmbeddingBag>()->forward(ids));
    return at::cat(pooled);
  }
  torch::nn::ModuleDict tables;
};

struct BagSharder : Sharder {
  explicit BagSharder(int64_t row_wise) : row_wise(row_wise) {}
  std::shared_ptr<torch::nn::Module> shard(const std::shared_ptr<torch::nn::Module>& module) override {
    const auto bags = std::dynamic_pointer_cast<EmbeddingBags>(module);
    TORCH_CHECK(bags != nullptr, "The custom sharder only supports CustomEmbeddingBagCollection");
    return std::make_shared<ShardedBags>(bags, row_wise);
  }
  int64_t row_wise;
};

struct BagModel : torch::nn::Module {
  BagModel() { register_module("ebc", std::make_shared<EmbeddingBags>(10, 10, 8)); }
  at::Tensor forward(const at::Tensor& ids) { return submodule<BagCollection>(*this, "ebc")->forward(ids); }
};

// fc1, GELU, fc2
struct Mlp : torch::nn::Module {
  Mlp()
      : fc1(register_module("fc1", torch::nn::Linear(17, 12))),
        fc2(register_module("fc2", with_output_hooks(torch::nn::Linear(12, 29)))) {}
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::nn::functional::gelu(fc1(x))); }
  torch::nn::Linear fc1;
  OutputHooked<torch::nn::LinearImpl> fc2;
};

bool is_row_wise(const at::Tensor& weight) {
  return ShardedTensor(weight).sharding_spec() == AnyShardingSpec(chunks(0, kAll));
}
bool is_column_wise(const at::Tensor& weight) {
  return ShardedTensor(weight).sharding_spec() == AnyShardingSpec(chunks(1, kAll));
}

TEST_CASE("SMOD-1: entries for parameters; a planner that shards every parameter") {
  struct EverythingByRows : ShardingPlanner {
    ShardingPlan build_plan(const torch::nn::Module& module) override {
      ShardingPlan plan;
      for (const auto& p : module.named_parameters()) plan.plan.emplace_back(p.key(), chunks(0, kAll));
      return plan;
    }
  } planner;
  Mlp model;
  const at::Tensor weight = model.fc1->weight.detach().clone();
  shard_module(model, planner.build_plan(model), test_world());
  int64_t sharded = 0;
  for (const auto& p : model.named_parameters()) sharded += is_sharded(p.value());
  CHECK(sharded == 4);
  // The members see it, and the values are rank 0's: the others have drawn other ones.
  REQUIRE(is_sharded(model.fc1->weight));
  if (own_ranks()[0] == 0) CHECK(shards_are(ShardedTensor(model.fc1->weight), weight));
}

TEST_CASE("SMOD-2: T1: a Sharder's module replaces the submodule") {
  BagModel model;
  const auto before = find_submodule(model, "ebc");
  shard_module(model, {{{"ebc", std::make_shared<BagSharder>(2)}}}, test_world());
  const auto after = find_submodule(model, "ebc");
  CHECK(after != before);
  CHECK(std::dynamic_pointer_cast<ShardedBags>(after) != nullptr);
  CHECK(model.named_children().size() == 1);
  CHECK_THROWS_AS(submodule<torch::nn::LinearImpl>(model, "ebc"), c10::TypeError);

  // In a ModuleDict its own list follows.
  torch::nn::ModuleDict dict;
  add(dict, "a", std::make_shared<EmbeddingBags>(1, 4, 2));
  add(dict, "b", torch::nn::Linear(2, 2).ptr());
  shard_module(*dict, {{{"a", std::make_shared<BagSharder>(0)}}}, test_world());
  CHECK(dict[std::string("a")]->as<ShardedBags>() != nullptr);
  CHECK(dict->keys() == std::vector<std::string>{"a", "b"});
}

TEST_CASE("SMOD-3: ten bags, two by rows and eight by columns, equal the local model") {
  torch::manual_seed(0);
  BagModel local;
  BagModel model;
  {
    torch::NoGradGuard no_grad;
    for (const auto& p : local.named_parameters()) model.named_parameters()[p.key()].copy_(p.value());
  }
  shard_module(model, {{{"ebc", std::make_shared<BagSharder>(2)}}}, test_world());
  const auto parameters = model.named_parameters();
  for (int i = 0; i < 10; ++i) {
    const at::Tensor weight = parameters["ebc.embedding_bags.embedding_bag_" + std::to_string(i) + ".weight"];
    REQUIRE(is_sharded(weight));
    CHECK(is_row_wise(weight) == (i < 2));
    CHECK(is_column_wise(weight) == (i >= 2));
  }
  const at::Tensor ids = at::arange(8, at::kLong).view({2, 4});
  const at::Tensor out = model.forward(ids);
  CHECK(out.sizes() == c10::IntArrayRef({20, 8}));
  CHECK_FALSE(is_sharded(out));
  CHECK(at::allclose(out, local.forward(ids)));
}

TEST_CASE("SMOD-4: a Sharder at the root, and parameters within a Sharder's module") {
  BagModel model;
  const auto sharder = std::make_shared<BagSharder>(2);
  const ShardingPlan at_root{{{"", sharder}}};
  CHECK_THROWS_AS(shard_module(model, at_root, test_world()), KeyError);
  CHECK_THAT(error_text([&] { shard_module(model, at_root, test_world()); }),
             Contains("path must not be empty for custom sharder!"));
  const std::string weight = "ebc.embedding_bags.embedding_bag_0.weight";
  // T10: wherever the empty path stands in the plan.
  const ShardingPlan later{{{weight, chunks(0, {0, 1})}, {"", sharder}}};
  CHECK_THROWS_AS(shard_module(model, later, test_world()), KeyError);
  const ShardingPlan conflict{{{weight, chunks(0, {0, 1})}, {"ebc", sharder}}};
  CHECK_THAT(
      error_text([&] { shard_module(model, conflict, test_world()); }),
      Contains("trying to shard a parameter: weight") && Contains("should not conflict with the submodule tree"));
  CHECK_FALSE(is_sharded(model.named_parameters()[weight]));  // nothing has been done

  // T10: "ebc2" is not within "ebc".
  struct Two : BagModel {
    Two() { register_module("ebc2", torch::nn::Linear(4, 4)); }
  } two;
  shard_module(two, {{{"ebc2.weight", chunks(0, kAll)}, {"ebc", sharder}}}, test_world());
  CHECK(is_sharded(two.named_parameters()["ebc2.weight"]));
}

TEST_CASE("SMOD-5: invalid values and paths of a plan") {
  Mlp model;
  const auto error_of = [&](const ShardingPlan& plan) {
    return error_text([&] { shard_module(model, plan, test_world()); });
  };
  const ShardingPlan null_spec{{{"fc1.weight", AnyShardingSpec()}}},
      null_sharder{{{"fc1", std::shared_ptr<Sharder>()}}};
  CHECK_THROWS_AS(shard_module(model, null_spec, test_world()), c10::TypeError);
  CHECK_THAT(error_of(null_spec), Contains("Only `ShardingSpec` and `Sharder` are supported to shard 'fc1.weight'"));
  CHECK_THAT(error_of(null_sharder), Contains("Only `ShardingSpec` and `Sharder` are supported to shard 'fc1'"));
  const ShardingPlan output{{}, {{{"fc2", std::make_shared<BagSharder>(1)}}}};
  CHECK_THROWS_AS(shard_module(model, output, test_world()), c10::TypeError);
  CHECK_THAT(error_of(output), Contains("Only `ShardingSpec` is supported as output_plan for 'fc2'"));
  for (const char* path : {"fc3.weight", "fc1.biass", "weight", "fc1.deep.weight"}) {
    const ShardingPlan wrong{{{"fc1.weight", chunks(0, kAll)}, {path, chunks(0, kAll)}}};
    CHECK_THROWS_AS(shard_module(model, wrong, test_world()), AttributeError);
    CHECK_THAT(error_of(wrong), Contains("has no attribute"));
  }
  CHECK_FALSE(is_sharded(model.fc1->weight));
  CHECK_THAT(error_of({{{"fc1.weight", chunks(0, kAll)}, {"fc1.weight", chunks(1, kAll)}}}),
             Contains("is twice in the plan"));
  CHECK_THAT(error_of({{}, {}, {{"fc1"}}}), Contains("has no hooks"));
  CHECK_THAT(error_of({{}, {}, {{"fc9"}}}), Contains("has no attribute `fc9`"));

  torch::nn::Sequential list(torch::nn::Linear(2, 2));
  const ShardingPlan in_list{{{"0", std::make_shared<BagSharder>(1)}}};
  CHECK_THAT(error_text([&] { shard_module(*list, in_list, test_world()); }), Contains("has a list of its own"));
  BagModel bags;
  struct Nothing : Sharder {
    std::shared_ptr<torch::nn::Module> shard(const std::shared_ptr<torch::nn::Module>&) override { return nullptr; }
  };
  CHECK_THROWS_AS(shard_module(bags, {{{"ebc", std::make_shared<Nothing>()}}}, test_world()), c10::TypeError);
}

// A linear for chunk specs of dim 0, whose output is cut by its last dim.
c10::IValue linear_on_dtensors(const OpTypes& types, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
  const DTensor weight(to_dtensor(types[0]));
  const at::Tensor input = distribute_tensor(args[0].toTensor().detach(), weight.mesh(), {}, std::nullopt);
  return c10::IValue(from_dtensor(redistribute(input.matmul(weight.tensor().t()), {dtensor::Shard(1)})).tensor());
}

// Calls the operator; torch::nn::Linear transposes and multiplies.
struct LinearByOperator : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
std::shared_ptr<LinearByOperator> linear_without_bias(int64_t in, int64_t out) {
  return std::make_shared<LinearByOperator>(torch::nn::LinearOptions(in, out).bias(false));
}

TEST_CASE("SMOD-6: output_plan, then return_local_tensor, of a child and of the module itself") {
  ScopedOp linear(SpecClass(typeid(ChunkShardingSpec)), "linear", linear_on_dtensors);
  struct Two : torch::nn::Module {
    Two()
        : fc1(register_module("fc1", linear_without_bias(17, 12))),
          fc2(register_module("fc2", with_output_hooks(linear_without_bias(12, 8)))) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor whole = full_tensor(to_dtensor(ShardedTensor(fc1->forward(x))));
      return fc2(torch::nn::functional::gelu(whole));
    }
    std::shared_ptr<LinearByOperator> fc1;
    OutputHooked<LinearByOperator> fc2;
  };
  for (const std::string where : {"fc2", ""}) {
    torch::manual_seed(1);
    auto model = with_output_hooks(std::make_shared<Two>());
    const at::Tensor w1 = model->fc1->weight.detach().clone(), w2 = model->fc2->weight.detach().clone();
    const at::Tensor x = table_of(6, 17).to(at::kFloat);
    const at::Tensor expected = at::matmul(torch::nn::functional::gelu(at::matmul(x, w1.t())), w2.t());
    ShardingPlan plan{{{"fc1.weight", chunks(0, kAll)}, {"fc2.weight", chunks(0, kAll)}}};
    plan.output_plan = {{where, chunks(0, kAll)}};
    shard_module(*model, plan, test_world());
    const ShardedTensor out(model->forward(x));
    CHECK(out.sharding_spec() == AnyShardingSpec(chunks(0, kAll)));  // by columns, were it not for the plan
    CHECK(shards_are(out, expected));
    shard_module(*model, {{}, {}, {{where}}}, test_world());
    if (own_ranks().size() == 1) {
      const at::Tensor mine = model->forward(x);
      CHECK_FALSE(is_sharded(mine));
      CHECK(mine.sizes() == out.local_tensor().sizes());
    } else {
      CHECK_THAT(error_text([&] { model->forward(x); }), Contains("local_shards_of()"));
    }
  }
}

TEST_CASE("SMOD-7: a sub-group, and the source rank is passed on") {
  const ProcessGroup group(test_world(), {2, 3});
  Mlp model;
  torch::manual_seed(static_cast<uint64_t>(own_ranks()[0]));  // other values on every process
  for (const auto& p : model.parameters()) p.data().uniform_();
  const at::Tensor before = model.fc2->weight.detach().clone();
  if (group.owned_ranks().empty()) return;  // other processes do not call
  shard_module(model, {{{"fc1.weight", chunks(0, {2, 3})}, {"fc2.weight", chunks(1, {2, 3})}}}, group, /*src_rank=*/1);
  const ShardedTensor fc2(model.fc2->weight);
  CHECK(fc2.local_shards(group.owned_ranks().back())[0].tensor.size(1) == 6);
  if (own_ranks().back() == 3) CHECK(at::equal(fc2.local_shards(3)[0].tensor.detach(), before.narrow(1, 6, 6)));
}

// Gives a sharded tensor, or what it was made with.
struct Source : torch::nn::Module {
  explicit Source(at::Tensor t) : given(std::move(t)) {}
  at::Tensor forward() { return given; }
  at::Tensor given;
};

TEST_CASE("HK-1: local shards as outputs, without the sharded dim if its size is 1") {
  const std::vector<int64_t> order = {0, 1, 3, 2};
  const ShardedTensor st = rand(chunks(0, order), {23, 15}, test_world());
  auto module = with_output_hooks(std::make_shared<Source>(st.tensor()));
  collect_local_shard(*module);
  const auto shards = local_shards_of(st.tensor());
  for (size_t i = 0; i < shards.size(); ++i) {
    const int64_t rank = own_ranks()[i];
    CHECK(shards[i].sizes() == c10::IntArrayRef({rank == 2 ? 5 : 6, 15}));
    CHECK(at::equal(shards[i], st.local_tensor(rank)));
  }
  if (own_ranks().size() == 1) {
    CHECK(at::equal(module->forward(), st.local_tensor()));
  } else {
    CHECK_THROWS_AS(module->forward(), c10::ValueError);
  }
  for (const at::Tensor& t : local_shards_of(rand(chunks(0, order), {4, 16}, test_world()))) {
    CHECK(t.sizes() == c10::IntArrayRef({16}));
  }
  auto plain = with_output_hooks(std::make_shared<Source>(at::ones({4, 16})));
  collect_local_shard(*plain);
  CHECK(plain->forward().is_same(plain->given));
}

TEST_CASE("HK-2, RS-6: sharded outputs are resharded, and others unchanged") {
  const auto rows = chunks(0, {0, 1, 3, 2}), columns = chunks(1, {2, 3, 1, 0});
  const at::Tensor whole = table_of(24, 12);
  auto module = with_output_hooks(std::make_shared<Source>(shard_tensor(whole, rows, test_world()).tensor()));
  CHECK(&reshard_output(*module, columns) == static_cast<OutputHooks*>(&*module));
  const ShardedTensor out(module->forward());
  CHECK(out.sharding_spec() == AnyShardingSpec(columns));
  CHECK(out.local_tensor(own_ranks()[0]).sizes() == c10::IntArrayRef({24, 3}));
  CHECK(shards_are(out, whole));
  module->given = whole;
  CHECK(module->forward().is_same(whole));
  CHECK_THROWS_AS(reshard_output(*module, AnyShardingSpec()), c10::TypeError);
}

TEST_CASE("PL-1: a plan as a value") {
  const ShardingPlan plan{{{"fc1.weight", chunks(0, kAll)}}};
  CHECK_FALSE(plan.output_plan.has_value());
  CHECK_FALSE(plan.return_local_tensor.has_value());
  CHECK(plan.plan[0].first == "fc1.weight");
  static_assert(std::is_abstract_v<ShardingPlanner>);
  static_assert(std::is_abstract_v<Sharder>);
  Mlp model;
  shard_module(model, {}, test_world());
  CHECK_FALSE(is_sharded(model.fc1->weight));
}

}  // namespace
}  // namespace dtensor::sharded
