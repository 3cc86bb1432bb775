// Checkpoints of parts: saved on one mesh and loaded on any other, whole or not at all, damage found.
#include <ATen/ATen.h>
#include <dirent.h>
#include <sys/resource.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "checkpoint/checkpoint_series.h"
#include "checkpoint/sharded/manifest.h"
#include "checkpoint/sharded/part_file.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/long_tests.h"

namespace dtensor {
using namespace internal;

namespace {

namespace nn = torch::nn;
using Catch::Contains;

// Tensors of their own, no random state, in the way that most cases want them.
CheckpointContents contents_of(NamedTensors tensors) {
  CheckpointContents contents;
  contents.tensors = std::move(tensors);
  contents.random_state = false;
  return contents;
}

at::Tensor whole(const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

// Values that no two elements share, as far as the dtype goes.
at::Tensor numbered(at::IntArrayRef sizes, c10::ScalarType dtype) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  const at::Tensor all = at::arange(n, at::kDouble).remainder(dtype == at::kBool ? 2 : 100).view(sizes);
  if (c10::isComplexType(dtype)) return at::complex(all, all.neg()).to(dtype);
  return all.to(dtype);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  REQUIRE(dir != nullptr);
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_part_file(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    if (is_part_file_name(name)) return folder + "/" + name;
  }
  return "";
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("a checkpoint loads bit for bit on any other mesh, and on none", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh two_by_two(World::local(4), {2, 2}, {"dp", "tp"});
  const std::vector<std::pair<std::vector<int64_t>, std::vector<Placements>>> others = {
      {{4}, {{Shard(0)}, {Shard(1)}, {Replicate()}}},
      {{3}, {{Shard(0)}, {Shard(1)}}},
      {{1}, {{Shard(0)}}},
      {{2, 2, 2}, {{Shard(1), Shard(0), Replicate()}, {Shard(0), Shard(0), Shard(1)}}},
      {{64}, {{Shard(0)}, {Shard(1)}}}};
  const std::vector<Placements> layouts = {{Shard(0), Replicate()},
                                           {Shard(1), Shard(0)},
                                           {Replicate(), Replicate()},
                                           {StridedShard(0, 2), Shard(0)},
                                           {Shard(0), Shard(0)}};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    const at::Tensor full = numbered({11, 6}, dtype);
    for (const Placements& from : layouts) {
      INFO(dtype << " " << to_string(from));
      save_checkpoint(folder, contents_of({{"t", distribute_tensor(full, two_by_two, from)}}));
      for (const auto& [shape, targets] : others) {
        int64_t ranks = 1;
        for (const int64_t n : shape) ranks *= n;
        const DeviceMesh mesh(World::local(ranks), shape);
        for (const Placements& to : targets) {
          auto contents = contents_of({{"t", distribute_tensor(at::zeros_like(full), mesh, to)}});
          load_checkpoint(folder, contents);
          CHECK(at::equal(full_tensor(contents.tensors["t"]), full));
        }
      }
      auto plain = contents_of({{"t", at::zeros_like(full)}}), undefined = contents_of({{"t", at::Tensor()}});
      load_checkpoint(folder, plain);
      load_checkpoint(folder, undefined);
      CHECK(at::equal(plain.tensors["t"], full));
      CHECK(at::equal(undefined.tensors["t"], full));
    }
  }
}

TEST_CASE("saving and loading communicate nothing and hold no whole tensor", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(4), {4});
  const at::Tensor full = at::rand({64, 32});
  auto contents = contents_of({{"a", distribute_tensor(full, mesh, {Shard(0)})},
                               {"b", distribute_tensor(full, mesh, {Shard(1)})},
                               {"c", distribute_tensor(full, mesh, {Replicate()})}});
  CommDebugMode comm;
  save_checkpoint(folder, contents);
  load_checkpoint(folder, contents);
  CHECK(comm.total() == 0);
  // Replicated data is written once, and every rank writes something.
  int64_t data = 0;
  const Manifest manifest = read_manifest(folder);
  for (const auto& [name, file] : manifest.files) data += file.bytes;
  CHECK(manifest.files.size() == 4);
  CHECK(data < 3 * full.numel() * 4 + 4 * 1024);
}

TEST_CASE("views, conjugates, empty tensors, numbers and other strides are saved by value", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor base = numbered({6, 4}, at::kDouble), c = at::complex(base, base + 1);
  const auto laid_out = [&](const at::Tensor& t, const Placement& p) { return distribute_tensor(t, mesh, {p}); };
  const NamedTensors tensors = {{"plain.slice", base.slice(1, 1, 3)},
                                {"plain.conj", c.conj().to(at::kComplexFloat).conj()},
                                {"plain.number", base[0][3]},
                                {"plain.empty", at::empty({0, 3})},
                                {"t", laid_out(base, Shard(0)).t()},
                                {"slice", laid_out(base, Replicate()).slice(0, 1, 6, 2)},
                                {"expanded", laid_out(base, Replicate()).slice(0, 0, 1).expand({3, 4})},
                                {"empty", laid_out(at::empty({0, 4}), Shard(0))},
                                {"number", laid_out(base[1][1], Replicate())},
                                {"one", laid_out(base.slice(0, 0, 1), Shard(0))}};
  save_checkpoint(folder, contents_of(tensors));
  NamedTensors targets;
  for (const auto& [name, t] : tensors) targets[name] = at::Tensor();
  auto loaded = contents_of(targets);
  load_checkpoint(folder, loaded);
  for (const auto& [name, t] : tensors) {
    INFO(name);
    CHECK(at::equal(loaded.tensors[name], whole(t).resolve_conj()));
  }
}

TEST_CASE("unsupported values are rejected by name, and the folder keeps its contents", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2}), other(World::local(2), {2});
  const at::Tensor full = at::rand({4, 4});
  save_checkpoint(folder, contents_of({{"t", full}}));
  const auto refused = [&](const NamedTensors& tensors, const char* text) {
    CHECK_THROWS_WITH(save_checkpoint(folder, contents_of(tensors)), Contains(text));
    auto again = contents_of({{"t", at::Tensor()}});
    load_checkpoint(folder, again);
    CHECK(at::equal(again.tensors["t"], full));
  };
  refused({{"p", redistribute(distribute_tensor(full, mesh, {Shard(0)}), {Shard(1)}).sum(1)}}, "'p' is");
  refused({{"a", distribute_tensor(full, mesh, {Shard(0)})}, {"b", distribute_tensor(full, other, {Shard(0)})}},
          "a checkpoint is of one world");
  refused({{"u", at::Tensor()}}, "'u' is undefined");
  refused({{"h", at::zeros({2}, at::kComplexHalf)}}, "'h'");
  refused({{"x", distribute_tensor(full, DeviceMesh(World::abstract(4), {4}), {Shard(0)})}}, "lacks values");
}

TEST_CASE("training continues from a checkpoint as without interruption", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  struct Run {
    explicit Run(const DeviceMesh& mesh, bool momentum) : model(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 3)) {
      if (mesh.defined()) {
        distribute_module(*model, mesh, [](const std::string& name, nn::Module& part, const DeviceMesh& m) {
          if (name == "0") shard_parameter(part, "weight", m, Placements(m.ndim(), Shard(0)));
        });
      }
      if (momentum) {
        optimizer =
            std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      } else {
        optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(0.01));
      }
      contents.modules["model"] = &*model;
      contents.optimizers["optimizer"] = optimizer.get();
      this->mesh = mesh;
    }
    double step() {
      at::Tensor x = at::rand({4, 6});
      if (mesh.defined()) x = distribute_tensor(x, mesh, Placements(mesh.ndim(), Replicate()));
      optimizer->zero_grad();
      const at::Tensor loss = model->forward(x).square().sum();
      loss.backward();
      optimizer->step();
      return whole(loss.detach()).item<double>();
    }
    nn::Sequential model;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    CheckpointContents contents;
    DeviceMesh mesh;
  };
  const DeviceMesh four(World::local(4), {2, 2}), two(World::local(2), {2}), none;
  for (const bool momentum : {true, false}) {
    torch::manual_seed(3);
    Run first(four, momentum);
    for (int k = 0; k < 3; ++k) first.step();
    first.optimizer->param_groups()[0].options().set_lr(0.02);  // as a scheduler does
    first.contents.values["step"] = int64_t{3};
    save_checkpoint(folder, first.contents);
    std::vector<double> expected;
    for (int k = 0; k < 3; ++k) expected.push_back(first.step());
    for (const DeviceMesh& mesh : {two, none, four}) {
      torch::manual_seed(77);
      Run second(mesh, momentum);
      if (mesh == four) second.step();  // it has states of its own already
      load_checkpoint(folder, second.contents);
      CHECK(std::get<int64_t>(second.contents.values.at("step")) == 3);
      CHECK(second.optimizer->param_groups()[0].options().get_lr() == 0.02);
      for (const double loss : expected) CHECK(second.step() == Approx(loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("a mismatch is listed, and with strict it changes nothing", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  save_checkpoint(folder, contents_of({{"a", at::ones({2, 2})}, {"b", at::ones({3})}, {"c", at::ones({4})}}));
  auto contents = contents_of(
      {{"a", distribute_tensor(at::zeros({2, 2}), mesh, {Shard(0)})}, {"b", at::zeros({5})}, {"d", at::zeros({1})}});
  CHECK_THROWS_WITH(load_checkpoint(folder, contents), Contains("missing d") && Contains("unexpected c") &&
                                                           Contains("b: [3] in the checkpoint, [5] here"));
  CHECK(at::equal(whole(contents.tensors["a"]), at::zeros({2, 2})));
  LoadCheckpointOptions lenient;
  lenient.strict = false;
  const CheckpointMismatch mismatch = load_checkpoint(folder, contents, lenient);
  CHECK(mismatch.missing == std::vector<std::string>{"d"});
  CHECK(mismatch.unexpected == std::vector<std::string>{"c"});
  CHECK(mismatch.reshaped.size() == 1);
  CHECK(at::equal(whole(contents.tensors["a"]), at::ones({2, 2})));
  CHECK(at::equal(contents.tensors["b"], at::zeros({5})));
  CHECK_THROWS_WITH(load_checkpoint(folder + "/nothing", contents), Contains("there is no checkpoint in"));
}

TEST_CASE("a flipped bit anywhere in a checkpoint is an error that changes nothing", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor full = at::rand({8, 4});
  save_checkpoint(folder, contents_of({{"weight", distribute_tensor(full, mesh, {Shard(0)})}}));
  auto contents = contents_of({{"weight", distribute_tensor(at::zeros({8, 4}), mesh, {Shard(1)})}});
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name, good = testing::read_file(path);
    for (size_t at = 0; at<good.size(); at += good.size()> 500 ? 7 : 1) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      write_bytes(path, bad);
      INFO(name << " byte " << at);
      CHECK_THROWS_AS(load_checkpoint(folder, contents), c10::Error);
    }
    for (const size_t size : {size_t{0}, good.size() / 2, good.size() - 1}) {
      write_bytes(path, good.substr(0, size));
      CHECK_THROWS_AS(load_checkpoint(folder, contents), c10::Error);
    }
    std::remove(path.c_str());
    CHECK_THROWS_WITH(load_checkpoint(folder, contents), Contains(name));
    write_bytes(path, good);
  }
  CHECK(at::equal(whole(contents.tensors["weight"]), at::zeros({8, 4})));
  load_checkpoint(folder, contents);
  CHECK(at::equal(whole(contents.tensors["weight"]), full));
  std::string bad = testing::read_file(first_part_file(folder));
  bad.back() = static_cast<char>(bad.back() ^ 1);
  write_bytes(first_part_file(folder), bad);
  CHECK_THROWS_WITH(load_checkpoint(folder, contents), Contains("'weight'") && Contains("rank-00000"));
}

TEST_CASE("an asynchronous save has the values of its start, and is complete after wait()", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor t = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
  save_checkpoint(folder, contents_of({{"t", t}}));
  const auto saved = [&] {
    auto contents = contents_of({{"t", at::Tensor()}});
    load_checkpoint(folder, contents);
    return contents.tensors["t"][0][0].item<double>();
  };
  t.add_(1);
  {
    PendingCheckpoint pending = save_checkpoint_async(folder, contents_of({{"t", t}}));
    t.add_(5);
    CHECK(saved() == 1);
    CHECK_THROWS_WITH(save_checkpoint(folder, contents_of({{"t", t}})), Contains("is under way"));
    pending.wait();
    CHECK(saved() == 2);
    CHECK_THROWS_WITH(pending.wait(), Contains("before"));
  }
  {
    PendingCheckpoint polled = save_checkpoint_async(folder, contents_of({{"t", t}}));
    while (!polled.try_commit()) CHECK(saved() == 2);
    CHECK(saved() == 7);
    CHECK(polled.try_commit());
    CHECK_THROWS_WITH(polled.wait(), Contains("has ended before"));
    t.sub_(5);
    save_checkpoint(folder, contents_of({{"t", t}}));
  }
  { const PendingCheckpoint dropped = save_checkpoint_async(folder, contents_of({{"t", t}})); }
  CHECK(saved() == 2);
  CHECK(names_in(folder).size() == 3);  // the manifest and a file of each rank: nothing is left of others
}

TEST_CASE("ambiguous or unsuitable targets are rejected before anything changes", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  nn::Sequential model(nn::Linear(2, 2));
  nn::Linear other(2, 2);
  CheckpointContents twice{.modules = {{"model", &*model}, {"model.0", &*other}}};
  CHECK_THROWS_WITH(save_checkpoint(folder, twice), Contains("two tensors are called 'model.0."));
  save_checkpoint(folder, contents_of({{"t", at::ones({4})}, {"c", at::complex(at::ones({2}), at::ones({2}))}}));
  LoadCheckpointOptions lenient;
  lenient.strict = false;
  auto expanded = contents_of({{"t", at::zeros({1}).expand({4})}});
  CHECK_THROWS_WITH(load_checkpoint(folder, expanded, lenient), Contains("'t' is expanded"));
  auto real = contents_of({{"c", at::zeros({2})}});
  CHECK_THROWS_WITH(load_checkpoint(folder, real, lenient), Contains("'c' is of ComplexFloat"));
  auto meta = contents_of({{"t", at::zeros({4}, at::TensorOptions(at::kFloat).device(at::kMeta))}});
  CHECK_THROWS_WITH(load_checkpoint(folder, meta, lenient), Contains("'t' has no values"));
}

TEST_CASE("a checkpoint without the optimizer keeps its states", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  nn::Linear model(3, 2);
  torch::optim::Adam adam(model->parameters());
  model(at::ones({1, 3})).sum().backward();
  adam.step();
  CheckpointContents contents{.modules = {{"model", &*model}}};
  save_checkpoint(folder, contents);
  contents.optimizers["adam"] = &adam;
  LoadCheckpointOptions lenient;
  lenient.strict = false;
  CHECK_FALSE(load_checkpoint(folder, contents, lenient).missing.empty());
  CHECK(adam.state().size() == 2);
  CHECK_THROWS_WITH(load_checkpoint(folder, contents), Contains("missing adam.param_groups.0."));
}

TEST_CASE("malformed manifests are errors", "[checkpoint]") {
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("{}\n"), std::string(200000, '[') + "\n",
        std::string("{\"format\":\"dtensor checkpoint\",\"version\":2}\n"),
        std::string("{\"format\":\"dtensor checkpoint\",\"version\":1,\"checksum\":1,"
                    "\"checkpoint\":") +
            std::string(100000, '[') + "\n"}) {
    CHECK_THROWS_AS(parse_manifest(text), c10::Error);
  }
}

TEST_CASE("saving and loading inside a MeshScope", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  const MeshScope scope(mesh);
  nn::Linear model(3, 2);  // plain: modules make their parameters so
  torch::optim::Adagrad optimizer(model->parameters());
  CheckpointContents contents{.modules = {{"model", &*model}}, .optimizers = {{"optimizer", &optimizer}}};
  contents.tensors["t"] = distribute_tensor(numbered({4, 2}, at::kFloat), mesh, {Shard(0)});
  save_checkpoint(folder, contents);
  contents.tensors["t"] = at::Tensor();
  optimizer.state().clear();
  load_checkpoint(folder, contents);
  CHECK_FALSE(is_dtensor(contents.tensors["t"]));
  CHECK(optimizer.state().size() == 2);
}

TEST_CASE("a series keeps the last checkpoints", "[checkpoint]") {
  const testing::TempFolder temporary;
  const CheckpointSeries series(temporary / "run", 2);
  CHECK_FALSE(series.latest());
  for (const int64_t step : {5, 10, 15, 100}) {
    series.save(step, contents_of({{"t", at::full({3}, step)}}));
    CHECK(series.latest() == step);
  }
  CHECK(series.steps() == std::vector<int64_t>{15, 100});
  CHECK(names_in(temporary / "run").size() == 2);
  auto contents = contents_of({{"t", at::Tensor()}});
  load_checkpoint(series.folder(15), contents);
  CHECK(contents.tensors["t"][0].item<int64_t>() == 15);
  // One that is not there whole does not count, and is no reason to remove another.
  std::remove((series.folder(100) + "/" + kManifestName).c_str());
  CHECK(series.latest() == 15);
  // A run that goes back keeps what it saves, and what was left behind goes.
  series.save(12, contents_of({{"t", at::full({3}, 12)}}));
  CHECK(series.steps() == std::vector<int64_t>{12, 15});
  series.save(200, contents_of({{"t", at::full({3}, 200)}}));
  CHECK(series.steps() == std::vector<int64_t>{15, 200});
  CHECK(names_in(temporary / "run").size() == 2);
  CHECK_THROWS_WITH(CheckpointSeries("run", 0), Contains("keep_last is 0"));
}

TEST_CASE("progress ends at the total", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  CheckpointProgress saved, loaded;
  SaveCheckpointOptions save_options;
  save_options.progress = [&](const CheckpointProgress& p) { saved = p; };
  LoadCheckpointOptions load_options;
  load_options.progress = [&](const CheckpointProgress& p) { loaded = p; };
  auto contents = contents_of({{"a", at::rand({300, 100})}, {"b", at::rand({7})}});
  save_checkpoint(folder, contents, save_options);
  load_checkpoint(folder, contents, load_options);
  for (const CheckpointProgress& p : {saved, loaded}) {
    CHECK(p.bytes_total == (300 * 100 + 7) * 4);
    CHECK(p.bytes_done == p.bytes_total);
  }
}

namespace {

// Two small tensors whose elements are all `k`, and k itself.
CheckpointContents all_of(double k, const DeviceMesh& mesh) {
  auto contents =
      contents_of({{"a", distribute_tensor(at::full({6, 5}, k), mesh, {Shard(0)})}, {"b", at::full({9}, k)}});
  contents.values["k"] = k;
  return contents;
}

// What of all_of() the folder holds. Fails where it is not all of one.
double loaded_k(const std::string& folder) {
  auto contents = contents_of({{"a", at::Tensor()}, {"b", at::Tensor()}});
  load_checkpoint(folder, contents);
  const double k = std::get<double>(contents.values.at("k"));
  CHECK(at::equal(contents.tensors["a"], at::full({6, 5}, k)));
  CHECK(at::equal(contents.tensors["b"], at::full({9}, k)));
  return k;
}

// Runs `work` in a process of its own. 0: it returned.
pid_t start(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    work();
  } catch (const c10::Error&) {
    ::_exit(1);
  } catch (...) {
    ::_exit(2);
  }
  ::_exit(0);
}

}  // namespace

TEST_CASE("a process that is killed while it saves leaves the checkpoint before or the one after", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(3), {3});
  save_checkpoint(folder, all_of(0, mesh));
  std::mt19937 random(1);
  double last = 0;
  int moved = 0;
  // The time limit follows the machine's speed: it grows after a round that saved nothing, and shrinks after the
  // others, so that about half of the processes are killed in their first save.
  double limit_us = 1000;
  for (int round = 0; round < 200; ++round) {
    const pid_t pid = start([&] {
      for (int k = 1;; ++k) save_checkpoint(folder, all_of(last + k, mesh));
    });
    ::usleep(static_cast<useconds_t>(std::uniform_real_distribution<double>(0, limit_us)(random)));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    const double k = loaded_k(folder);
    CHECK(k >= last);
    limit_us *= k > last ? 0.8 : 1.25;
    moved += k > last;
    last = k;
  }
  INFO("The last time limit was " << limit_us << " us");
  CHECK(moved > 20);  // they were killed while they saved
  save_checkpoint(folder, all_of(-1, mesh));
  CHECK(names_in(folder).size() == 4);  // what they left is gone
}

TEST_CASE("a forked process does not affect its parent's save", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  auto pending = std::make_unique<PendingCheckpoint>(save_checkpoint_async(folder, all_of(1, mesh)));
  while (!pending->written()) std::this_thread::yield();
  const size_t files = names_in(folder).size();
  const pid_t pid = start([&] {
    CHECK_THROWS_WITH(pending->wait(), Catch::Contains("was forked"));
    pending.reset();
  });
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(names_in(folder).size() == files);
  CHECK_THROWS_WITH(save_checkpoint(folder, all_of(2, mesh)), Catch::Contains("under way"));
  pending->wait();
  CHECK(loaded_k(folder) == 1);
}

TEST_CASE("a full disk at any byte is an error, and the old checkpoint stays", "[checkpoint]") {
  const testing::TempFolder temporary;
  const std::string folder = temporary / "checkpoint";
  const DeviceMesh mesh(World::local(2), {2});
  save_checkpoint(folder, all_of(1, mesh));
  int64_t largest = 0;
  for (const std::string& name : names_in(folder))
    largest = std::max<int64_t>(largest, testing::read_file(folder + "/" + name).size());
  // Short form: every seventh byte, and each around the end.
  const auto step = [&](int64_t limit) { return testing::long_tests() || limit > largest - 20 ? 1 : 7; };
  for (int64_t limit = 0; limit < largest + 20; limit += step(limit)) {
    const pid_t pid = start([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const struct rlimit bytes = {static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
      ::setrlimit(RLIMIT_FSIZE, &bytes);
      save_checkpoint(folder, all_of(2, mesh));
    });
    int status = 0;
    ::waitpid(pid, &status, 0);
    INFO(limit << " bytes");
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == (limit < largest ? 1 : 0));
    CHECK(loaded_k(folder) == (limit < largest ? 1 : 2));
    CHECK(names_in(folder).size() == 3);
  }
}

}  // namespace dtensor
