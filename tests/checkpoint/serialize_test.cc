// Files: ours read by plain torch, torch's read by us, layouts kept, errors that leave things as they were.
#include "checkpoint/serialize.h"

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/checkpoint/python_files.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

const DeviceMesh& grid() {
  static const DeviceMesh m(World::local(4), {2, 2}, {"dp", "tp"});
  return m;
}

// A folder of its own per test, removed at the end.
struct Folder {
  Folder() {
    const char* base = std::getenv("TEST_TMPDIR");
    std::string name = std::string(base ? base : "/tmp") + "/serialize_XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& file) const { return (path / file).string(); }
  std::string write(const std::string& file, const std::string& bytes) const {
    std::ofstream(path / file, std::ios::binary) << bytes;
    return (path / file).string();
  }
  std::filesystem::path path;
};

std::string bytes_of(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}

std::string decoded(const char* base64) {
  std::string bytes;
  REQUIRE(absl::Base64Unescape(base64, &bytes));
  return bytes;
}

nn::Sequential make_model() {
  return nn::Sequential(nn::Linear(5, 3), nn::BatchNorm1d(3), nn::Functional(torch::tanh), nn::Linear(3, 2));
}

void distribute(nn::Module& m) {
  distribute_module(m, grid(), [](const std::string& name, nn::Module& part, const DeviceMesh& mesh) {
    if (name == "0") shard_parameter(part, "weight", mesh, {Shard(1), Shard(0)});
  });
}

void check_same(const nn::Module& a, const nn::Module& b) {
  const auto x = state_dict(a), y = state_dict(b);
  REQUIRE(x.size() == y.size());
  for (const auto& [name, t] : x) {
    INFO(name);
    const auto whole = [](const Tensor& v) { return is_dtensor(v) ? full_tensor(v) : v; };
    CHECK(torch::equal(whole(t), whole(y.at(name))));
  }
}

}  // namespace

TEST_CASE("serialize: our module file read by plain torch, and vice versa") {
  const Folder folder;
  auto distributed = make_model(), plain = make_model(), other = make_model();
  distribute(*distributed);
  distribute(*other);
  const Tensor before = distributed->named_parameters()["0.weight"];

  CommDebugMode comm;
  save(*distributed, folder / "ours.pt");
  CHECK(comm.total() >= 1);
  CHECK(comm.counts_by_op() == std::map<std::string, int64_t>{{"save", comm.total()}});
  CHECK(distributed->named_parameters()["0.weight"].is_same(before));
  CHECK(DTensor(before).placements() == Placements{Shard(1), Shard(0)});
  CHECK(DTensor(before).name() == "0.weight");
  torch::load(plain, folder / "ours.pt");
  check_same(*plain, *distributed);

  torch::save(plain, folder / "theirs.pt");
  const Tensor weight = other->named_parameters()["0.weight"];
  const void* memory = DTensor(weight).local().data_ptr();
  load(*other, folder / "theirs.pt");
  check_same(*other, *plain);
  CHECK(other->named_parameters()["0.weight"].is_same(weight));
  CHECK(DTensor(weight).placements() == Placements{Shard(1), Shard(0)});
  CHECK(DTensor(weight).local().data_ptr() == memory);  // written to, not replaced
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
  CHECK(std::filesystem::file_size(folder / "ours.pt") < std::filesystem::file_size(folder / "theirs.pt") + 4096);
}

TEST_CASE("serialize: a single tensor") {
  const Folder folder;
  const Tensor value = torch::randn({5, 3});
  save(distribute_tensor(value, grid(), {Shard(0), Shard(1)}), folder / "t.pt");
  Tensor plain;
  torch::load(plain, folder / "t.pt");
  CHECK(torch::equal(plain, value));
  Tensor fresh, mine = zeros({5, 3}, grid(), {Shard(1), Replicate()}, {.dtype = torch::kDouble});
  load(fresh, folder / "t.pt");
  CHECK(torch::equal(fresh, value));
  load(mine, folder / "t.pt");
  CHECK(torch::equal(full_tensor(mine), value.to(torch::kDouble)));
  CHECK(DTensor(mine).placements() == Placements{Shard(1), Replicate()});
  Tensor small = zeros({5, 2}, grid());
  CHECK_THROWS_WITH(load(small, folder / "t.pt"), Catch::Contains("[5, 2]") && Catch::Contains("[5, 3]"));
  save(full({4}, 3.0, grid(), {Partial(), Replicate()}), folder / "p.pt");
  Tensor sum;
  load(sum, folder / "p.pt");
  CHECK(torch::equal(sum, torch::full({4}, 3.0)));
}

TEST_CASE("serialize: named tensors, in the format of Python's torch.save") {
  const Folder folder;
  auto model = make_model(), other = make_model();
  distribute(*model);
  distribute(*other);
  const std::string path = folder / "weights.pt";
  save(state_dict(*model), path);
  const std::string bytes = bytes_of(path);
  CHECK(bytes.find("restore_type_tag") == std::string::npos);  // else Python's weights_only loader refuses
  const auto dict = torch::pickle_load(std::vector<char>(bytes.begin(), bytes.end())).toGenericDict();
  CHECK(dict.size() == 9);
  CHECK(torch::equal(dict.at("0.weight").toTensor(), full_tensor(state_dict(*model).at("0.weight"))));
  load(*other, path);
  check_same(*other, *model);
  CHECK(DTensor(state_dict(*other).at("0.weight")).placements() == Placements{Shard(1), Shard(0)});
  // What torch::pickle_save writes: with type tags.
  c10::Dict<std::string, Tensor> tagged;
  tagged.insert("x", torch::arange(3));
  const auto theirs = torch::pickle_save(tagged);
  CHECK(
      torch::equal(load_tensors(folder.write("tagged.pt", {theirs.begin(), theirs.end()})).at("x"), torch::arange(3)));
  // A view is stored without the rest of its base, tied tensors once.
  save(NamedTensors{{"a", torch::zeros({1000, 100}).slice(0, 0, 1)}}, folder / "view.pt");
  CHECK(std::filesystem::file_size(folder / "view.pt") < 4000);
  const Tensor big = torch::ones({4000});
  save(NamedTensors{{"a", big}, {"b", big}}, folder / "tied.pt");
  CHECK(std::filesystem::file_size(folder / "tied.pt") < 20000);
}

TEST_CASE("serialize: files written by Python") {
  const Folder folder;
  nn::Linear linear(3, 2);
  distribute_module(*linear, grid(), [](const std::string&, nn::Module& m, const DeviceMesh& mesh) {
    shard_parameter(m, "weight", mesh, {Replicate(), Shard(1)});
  });
  load(*linear, folder.write("sd.pt", decoded(kStateDict)));
  CHECK(torch::equal(full_tensor(linear->weight), torch::arange(6.0).view({3, 2}).t()));
  CHECK(torch::equal(full_tensor(linear->bias), torch::tensor({3.0f, 4.0f})));
  const auto all = load_tensors(folder.write("checkpoint.pt", decoded(kCheckpoint)));
  CHECK(all.size() == 5);
  CHECK(torch::equal(all.at("model.weight"), torch::arange(6.0).view({3, 2}).t()));
  CHECK(torch::equal(all.at("list.0"), torch::arange(2, 5).to(torch::kBFloat16)));
  CHECK(torch::equal(all.at("list.1.x"), torch::ones({1})));
  CHECK(torch::equal(all.at("3"), torch::tensor({true, false})));
}

TEST_CASE("serialize: errors name key, shapes and file, and change nothing") {
  const Folder folder;
  auto model = make_model();
  distribute(*model);
  const Tensor before = full_tensor(state_dict(*model).at("0.weight")).clone();
  const auto unchanged = [&] {
    const Tensor w = state_dict(*model).at("0.weight");
    CHECK(DTensor(w).placements() == Placements{Shard(1), Shard(0)});
    CHECK(torch::equal(full_tensor(w), before));
    for (const auto& [name, t] : state_dict(*model)) CHECK(is_dtensor(t));
  };
  // The last parameter has another shape: what comes before it must not be loaded.
  nn::Sequential wider(nn::Linear(5, 3), nn::BatchNorm1d(3), nn::Functional(torch::tanh), nn::Linear(3, 4));
  torch::save(wider, folder / "wider.pt");
  CHECK_THROWS_WITH(load(*model, folder / "wider.pt"), Catch::Contains("'3.weight'") && Catch::Contains("[2, 3]") &&
                                                           Catch::Contains("[4, 3]") && Catch::Contains("wider.pt"));
  unchanged();
  save(state_dict(*wider), folder / "wider_dict.pt");
  CHECK_THROWS_WITH(load(*model, folder / "wider_dict.pt"), Catch::Contains("'3.") && Catch::Contains("wider_dict.pt"));
  unchanged();
  nn::Sequential shorter(nn::Linear(5, 3), nn::BatchNorm1d(3));
  torch::save(shorter, folder / "shorter.pt");
  CHECK_THROWS_WITH(load(*model, folder / "shorter.pt"), Catch::Contains("'file.3'") && Catch::Contains("shorter.pt"));
  unchanged();
  auto named = state_dict(*shorter);
  named["extra"] = torch::ones({1});
  save(named, folder / "named.pt");
  CHECK_THROWS_WITH(load(*model, folder / "named.pt"),
                    Catch::Contains("missing '3.bias', '3.weight'") && Catch::Contains("unexpected 'extra'"));
  unchanged();
  CHECK_THROWS_WITH(load(*model, folder / "none.pt"), Catch::Contains("none.pt") && Catch::Contains("no such file"));
  CHECK_THROWS_WITH(load(*model, folder.write("text.pt", "not a zip")), Catch::Contains("text.pt"));
  std::string cut = decoded(kStateDict);
  cut[cut.find("ccollections")] = '?';
  CHECK_THROWS_WITH(load_tensors(folder.write("bad.pt", cut)), Catch::Contains("bad.pt"));
  std::string code = decoded(kStateDict);
  code.replace(code.find("collections\nOrderedDict"), 23, "posix.......\nsystem\n   ", 0, 23);
  CHECK_THROWS(load_tensors(folder.write("code.pt", code)));
  CHECK_THROWS_WITH(save(*model, folder / "no/such/folder.pt"), Catch::Contains("no/such/folder.pt"));
  unchanged();
  // A failed save leaves the older file.
  const auto abstract = zeros({4}, DeviceMesh(World::abstract(8), {8}), {Shard(0)});
  const std::string good = folder / "wider.pt", old = bytes_of(good);
  CHECK_THROWS_WITH(save(abstract, good), Catch::Contains("abstract"));
  CHECK_THROWS_AS(save(zeros({4}, DeviceMesh(World::fake(4, 0), {4}), {Shard(0)}), good), c10::NotImplementedError);
  CHECK(bytes_of(good) == old);
}

TEST_CASE("serialize: a module with its own save and load") {
  struct CountingImpl : nn::Module {
    CountingImpl() { w = register_parameter("w", torch::ones({4})); }
    void save(torch::serialize::OutputArchive& a) const override {
      nn::Module::save(a);
      a.write("steps", torch::IValue(steps));
    }
    void load(torch::serialize::InputArchive& a) override {
      nn::Module::load(a);
      torch::IValue v;
      a.read("steps", v);
      steps = v.toInt();
    }
    Tensor w;
    int64_t steps = 0;
  };
  const Folder folder;
  const auto a = std::make_shared<CountingImpl>(), b = std::make_shared<CountingImpl>();
  distribute_module(*a, grid());
  distribute_module(*b, grid());
  a->steps = 17;
  MeshScope inside(grid());  // must not matter
  save(*a, folder / "m.pt");
  load(*b, folder / "m.pt");
  CHECK(b->steps == 17);
  CHECK(is_dtensor(b->w));
}

TEST_CASE("serialize: optimizers, and training continues unchanged") {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;
  const std::vector<std::pair<std::string, Make>> optimizers{
      {"SGD",
       [](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); }},
      {"Adam",
       [](auto p) { return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.1).amsgrad(true)); }},
      {"AdamW", [](auto p) { return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.1)); }},
      {"Adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.1)); }},
      {"RMSprop", [](auto p) {
         return std::make_unique<torch::optim::RMSprop>(p,
                                                        torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
       }}};
  const auto step = [](nn::Linear& m, torch::optim::Optimizer& o) {
    o.zero_grad();
    m(distribute_tensor(torch::ones({4, 5}), grid(), {Shard(0), Replicate()})).pow(2).sum().backward();
    o.step();
  };
  const auto make_linear = [] {
    nn::Linear m(5, 3);
    distribute_module(*m, grid(), [](const std::string&, nn::Module& part, const DeviceMesh& mesh) {
      shard_parameter(part, "weight", mesh, {Replicate(), Shard(0)});
    });
    return m;
  };
  for (const auto& [name, make] : optimizers) {
    INFO(name);
    const Folder folder;
    auto a = make_linear(), b = make_linear();
    auto oa = make(a->parameters()), ob = make(b->parameters());
    for (int i = 0; i < 3; ++i) step(a, *oa);
    step(b, *ob);
    save(*a, folder / "m.pt");
    save(*oa, folder / "o.pt");
    load(*b, folder / "m.pt");
    load(*ob, folder / "o.pt");
    nn::Linear plain(5, 3);
    auto op = make(plain->parameters());
    torch::load(*op, folder / "o.pt");  // plain torch reads it
    step(a, *oa);
    CommDebugMode comm;
    step(b, *ob);
    for (const auto& [op, n] : comm.counts_by_op()) {
      INFO(op);
      CHECK((op == "distribute_tensor" ||
             op == "gradient"));  // none in the optimizer: its state lies as the parameters do
    }
    CHECK(torch::allclose(full_tensor(a->weight), full_tensor(b->weight)));
    CHECK(torch::allclose(full_tensor(a->bias), full_tensor(b->bias)));

    nn::Linear wider(6, 3);
    auto ow = make(wider->parameters());
    const size_t states = ow->state().size();
    CHECK_THROWS_WITH(load(*ow, folder / "o.pt"), Catch::Contains("[3, 6]") && Catch::Contains("[3, 5]"));
    CHECK(ow->state().size() == states);
  }
}

TEST_CASE("serialize: from one mesh to another, and an abstract one") {
  const Folder folder;
  auto model = make_model(), other = make_model(), imagined = make_model();
  distribute(*model);
  save(*model, folder / "m.pt");
  const DeviceMesh three(World::local(3), {3}, {"x"}), big(World::abstract(64), {64}, {"x"});
  const auto by_rows = [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
    if (name == "0" || name == "3") shard_parameter(m, "weight", mesh, {Shard(0)});
  };
  distribute_module(*other, three, by_rows);
  distribute_module(*imagined, big, by_rows);
  load(*other, folder / "m.pt");
  check_same(*other, *model);
  CHECK_NOTHROW(load(*imagined, folder / "m.pt"));  // shapes are checked
  CHECK(is_dtensor(state_dict(*imagined).at("0.weight")));
}

}  // namespace dtensor
