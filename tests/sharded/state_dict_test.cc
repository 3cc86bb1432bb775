// Sharded tensors of modules by name, as bytes and in checkpoints.
#include <torch/nn/modules/linear.h>

#include "dtensor/redistribute.h"
#include "plan/spec.h"
#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor::sharded {
namespace {

struct Inner : torch::nn::Module {
  explicit Inner(const at::Tensor& t) { tensor = register_buffer("sharded_tensor2", t); }
  at::Tensor tensor;
};

struct Outer : torch::nn::Module {
  Outer(const at::Tensor& a, const at::Tensor& b) {
    tensor = register_parameter("sharded_tensor1", a, a.requires_grad());
    submodule = register_module("submodule", std::make_shared<Inner>(b));
  }
  at::Tensor tensor;
  std::shared_ptr<Inner> submodule;
};

ShardedTensor random(const AnyShardingSpec& spec, const ProcessGroup& group, std::vector<int64_t> size = {10, 20}) {
  return rand(spec, std::move(size), group);
}

TEST_CASE("SD-1 the sharded tensors of a module, as bytes and back") {
  const ShardedTensor a = random(chunks(0), test_world()), b = random(chunks(0), test_world());
  const Outer model(a.tensor(), b.tensor());
  const NamedTensors dict = state_dict(model);
  REQUIRE(dict.size() == 2);
  CHECK(dict.at("sharded_tensor1").is_same(a.tensor()));
  CHECK(dict.at("submodule.sharded_tensor2").is_same(b.tensor()));
  const NamedTensors loaded = load_shards(save_shards(dict, test_world()), test_world());
  Outer other(at::zeros({1}), at::zeros({1}));
  load_state_dict(other, loaded);
  REQUIRE(is_sharded(other.tensor));
  REQUIRE(is_sharded(other.submodule->tensor));
  CHECK(sharded::equal(other.tensor, a));
  CHECK(sharded::equal(other.submodule->tensor, b));
  CHECK(state_dict(other).count("submodule.sharded_tensor2") == 1);
  for (int64_t rank : test_world().owned_ranks())
    CHECK(!ShardedTensor(other.tensor).local_tensor(rank).is_alias_of(a.local_tensor(rank)));
}

TEST_CASE("trap T11: keys have one dot between names") {
  auto root =
      std::make_shared<Outer>(random(chunks(0), test_world()).tensor(), random(chunks(0), test_world()).tensor());
  torch::nn::Module outermost;
  outermost.register_module("prefix", root);
  const NamedTensors dict = state_dict(outermost);
  CHECK(dict.count("prefix.sharded_tensor1") == 1);
  CHECK(dict.count("prefix.submodule.sharded_tensor2") == 1);
  CHECK(dict.size() == 2);
}

TEST_CASE("SD-1 every kind of layout and dtype as bytes and back") {
  const NamedTensors dict = {
      {"grid", random(grid(), test_world(), {10, 10}).tensor()},
      {"several", random(chunks(0, {0, 1, 2, 3, 0, 1}), test_world(), {7, 3}).tensor()},
      {"one rank", random(chunks(-1, {2}), test_world(), {7, 3}).tensor()},
      {"empty", random(chunks(0), test_world(), {2, 3}).tensor()},
      {"half", rand(chunks(0), {10, 3}, test_world(), {.dtype = at::kHalf, .requires_grad = true}).tensor()},
      {"plain", counted({3, 2}, at::kLong)}};
  const NamedTensors loaded = load_shards(save_shards(dict, test_world()), test_world());
  REQUIRE(loaded.size() == dict.size());
  for (const auto& [name, t] : dict) {
    INFO(name);
    if (!is_sharded(t)) {
      CHECK(at::equal(loaded.at(name), t));
      continue;
    }
    CHECK(sharded::equal(loaded.at(name), t));
    CHECK(ShardedTensor(loaded.at(name)).sharding_spec() == ShardedTensor(t).sharding_spec());
  }
}

TEST_CASE("SD-2 ranks outside of the group save and load, too") {
  const ProcessGroup group(test_world(), {2, 3});
  const ShardedTensor a = random(chunks(0, {2, 3, 2, 3}), group);
  const std::vector<std::string> bytes = save_shards({{"a", a.tensor()}}, test_world());
  const LoadWithProcessGroup guard(group);
  const ShardedTensor loaded(load_shards(bytes, test_world()).at("a"));
  CHECK(loaded.process_group() == group);
  CHECK(sharded::equal(loaded, a));
  for (int64_t rank : test_world().owned_ranks()) CHECK(loaded.local_shards(rank).size() == (rank < 2 ? 0 : 2));
}

TEST_CASE("SD-3 modules without sharded tensors") {
  at::manual_seed(1);
  torch::nn::Linear fc(10, 10), other(10, 10);
  const NamedTensors dict = state_dict(*fc);
  CHECK(dict.size() == 2);
  load_state_dict(*other, load_shards(save_shards(dict, test_world()), test_world()));
  CHECK(at::equal(other->weight, fc->weight));
  CHECK(at::equal(other->bias, fc->bias));
  CHECK(other->weight.requires_grad());
}

TEST_CASE("SD-3 values that do not fit are rejected before any is loaded") {
  torch::nn::Linear fc(3, 2);
  const at::Tensor bias = fc->bias.detach().clone();
  CHECK_ERROR(c10::ValueError, "'weight' is of sizes [2, 3], its value of [3]",
              load_state_dict(*fc, {{"bias", at::ones({2})}, {"weight", at::ones({3})}}));
  CHECK(at::equal(fc->bias, bias));
  Outer model(random(chunks(0), test_world()).tensor(), at::zeros({1}));
  CHECK_ERROR(c10::ValueError, "'sharded_tensor1' is sharded, its value a plain tensor: shard_tensor() it",
              load_state_dict(model, {{"sharded_tensor1", at::zeros({10, 20})}}));
  CHECK(is_sharded(model.tensor));
}

TEST_CASE("SD-4 loading on another rank") {
  const ShardedTensor a = random(chunks(0), test_world());
  const std::vector<std::string> bytes = save_shards({{"a", a.tensor()}}, test_world());
  {
    const LoadWithProcessGroup guard(ProcessGroup(test_world(), {0, 2, 3}));
    const std::string text = error_of<c10::Error>([&] { load_shards(bytes, test_world()); });
    CHECK_THAT(text, Catch::Contains("rank 0: Local world size at save time was 4, but at load time was 3") &&
                         Catch::Contains("rank 1: Local rank at save time was 1, but at load time was -1") &&
                         Catch::Contains("rank 2: Local rank at save time was 2, but at load time was 1") &&
                         Catch::Contains("rank 3: Local rank at save time was 3, but at load time was 2"));
  }
  CHECK_ERROR(c10::Error,
              "Need to initialize default process group using \"init_process_group\" before loading ShardedTensor",
              load_shards(bytes, World()));
  if (testing::is_job()) return;
  // Of other worlds: rank r's bytes where r+1 is; a world of six.
  const std::vector<std::string> turned = {bytes[1], bytes[2], bytes[3], bytes[0]};
  {
    const LoadWithProcessGroup guard(ProcessGroup(test_world(), {3, 0, 1, 2}));
    CHECK_ERROR(c10::Error, "Global rank at save time was 1, but at load time was 0",
                load_shards(turned, test_world()));
  }
  const World six = World::local(6);
  std::vector<std::string> bytes_of_six = bytes;
  bytes_of_six.push_back(bytes[0]);
  bytes_of_six.push_back(bytes[0]);
  const LoadWithProcessGroup guard(ProcessGroup(six, {0, 1, 2, 3}));
  CHECK_ERROR(c10::Error, "Global world size at save time was 4, but at load time was 6",
              load_shards(bytes_of_six, six));
}

TEST_CASE("SD-4 damaged bytes") {
  const std::vector<std::string> good =
      save_shards({{"a", random(chunks(0), test_world(), {4, 2}).tensor()}}, test_world());
  const auto damaged = [&](auto change) {
    std::vector<std::string> bytes = good;
    for (std::string& b : bytes) change(b);
    return bytes;
  };
  CHECK_ERROR(c10::Error, "damaged: no end of the header",
              load_shards(damaged([](std::string& b) { b.clear(); }), test_world()));
  CHECK_ERROR(c10::Error, "is cut off", load_shards(damaged([](std::string& b) { b.pop_back(); }), test_world()));
  CHECK_ERROR(c10::Error, "bytes too many", load_shards(damaged([](std::string& b) { b += 'x'; }), test_world()));
  CHECK_ERROR(c10::Error, "version 7",
              load_shards(damaged([](std::string& b) { b.replace(b.find("\"version\":1}"), 12, "\"version\":7}"); }),
                          test_world()));
  // No change of a byte in the header crashes.
  const size_t header = good[0].find('\n');
  for (size_t i = 0; i < header; i += 7) {
    const auto bytes = damaged([&](std::string& b) { b[std::min(i, b.size() - 1)] ^= 2; });
    try {
      load_shards(bytes, test_world());
    } catch (const c10::Error&) {
    }
  }
}

TEST_CASE("SD-5 the group of loading does not nest, and ends with its block") {
  const ProcessGroup group(test_world(), {2, 3});
  try {
    const LoadWithProcessGroup guard(group);
    CHECK_ERROR(c10::Error, "ProcessGroup already set by previous \"load_with_process_group\" context manager",
                LoadWithProcessGroup{ProcessGroup(test_world())});
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  const LoadWithProcessGroup again(group);
}

// A folder that all processes of the test share.
std::string shared_folder() {
  static const testing::TempFolder folder;
  return exchange_texts(test_world(), "folder", [](int64_t) { return folder / ""; })[0];
}

TEST_CASE("checkpoints: sharded tensors load onto other specs, numbers of ranks, and DTensors") {
  const std::string folder = shared_folder() + "checkpoint";
  const at::Tensor whole = counted({11, 6}), lattice = counted({10, 10}, at::kDouble);
  save_checkpoint(folder,
                  {{"a", shard_tensor(whole, chunks(0, {2, 0, 3, 1}), test_world()).tensor()},
                   {"b", shard_tensor(lattice, chunks(0), test_world()).resharded(grid({0, 1, 0, 3})).tensor()}});
  for (const AnyShardingSpec& spec : {AnyShardingSpec(chunks(1)), AnyShardingSpec(chunks(0, {3, 1})),
                                      AnyShardingSpec(chunks(0, {0, 0, 1, 2, 3, 3}))}) {
    const ShardedTensor a = zeros(spec, {11, 6}, test_world());
    const ShardedTensor b = zeros(grid({3, 2, 1, 0}), {10, 10}, test_world(), {.dtype = at::kDouble});
    load_checkpoint(folder, {{"a", a.tensor()}, {"b", b.tensor()}});
    CHECK(holds(a, whole));
    CHECK(holds(b, lattice));
  }
  const DeviceMesh mesh(test_world(), {2, 2}, {"x", "y"});
  CheckpointContents contents;
  contents.tensors = {
      {"a", distribute_tensor(at::zeros({11, 6}), mesh, {dtensor::Shard(1), Replicate()})},
      {"b", distribute_tensor(at::zeros({10, 10}, at::kDouble), mesh, {dtensor::Shard(0), dtensor::Shard(0)})}};
  contents.random_state = false;
  dtensor::load_checkpoint(folder, contents);
  CHECK(at::equal(full_tensor(contents.tensors.at("a")), whole));
  CHECK(at::equal(full_tensor(contents.tensors.at("b")), lattice));
  CHECK_THROWS_WITH(load_checkpoint(folder, {{"a", zeros(chunks(0), {11, 7}, test_world()).tensor()}}),
                    Catch::Contains("[11, 6] in the checkpoint, [11, 7] here"));
  if (testing::is_job()) return;
  const World three = World::local(3);
  const ShardedTensor a = zeros(chunks(1, {2, 0, 1}), {11, 6}, three);
  load_checkpoint(folder, {{"a", a.tensor()}}, {.strict = false});
  CHECK(holds(a, whole));
}

}  // namespace
}  // namespace dtensor::sharded
