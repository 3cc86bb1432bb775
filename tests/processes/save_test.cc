// Saving in a job: one process writes, all learn how it went. Runs in every rank's process.
#include <dirent.h>
#include <sys/stat.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize/archive.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "checkpoint/one_writer.h"
#include "checkpoint/serialize.h"
#include "dtensor/distribute_module.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::error_text;

DeviceMesh mesh() { return DeviceMesh(job_world(), {job_world().size()}, {"x"}); }

// A folder that all ranks know.
std::string folder(const std::string& name) {
  const char* base = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(base != nullptr ? base : "/tmp") + "/" + name;
  ::mkdir(path.c_str(), 0700);
  return path;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  REQUIRE(dir != nullptr);
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

torch::nn::Linear make_linear(double value) {
  torch::nn::Linear m(6, 8);
  torch::NoGradGuard no_grad;
  m->weight.copy_(torch::arange(48.0).view({8, 6}) * value);
  m->bias.fill_(value);
  distribute_module(*m, mesh(), [](const std::string&, torch::nn::Module& part, const DeviceMesh& mesh) {
    shard_parameter(part, "weight", mesh, {Shard(0)});
  });
  return m;
}

void step(torch::nn::Linear& m, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  m(ones({4, 6}, mesh(), {Replicate()})).pow(2).sum().backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("save: by all ranks, one file each, and all load it") {
  const std::string dir = folder("all");
  for (int round = 1; round <= 5; ++round) {  // over the older file, too
    auto a = make_linear(round), b = make_linear(0.5);
    torch::optim::Adam oa(a->parameters(), 0.1), ob(b->parameters(), 0.5);
    step(a, oa);
    save(*a, dir + "/m.pt");
    save(oa, dir + "/o.pt");
    save(state_dict(*a), dir + "/n.pt");
    save(a->weight, dir + "/t.pt");
    load(*b, dir + "/m.pt");
    load(ob, dir + "/o.pt");
    const at::Tensor whole = full_tensor(a->weight).detach();
    CHECK(torch::equal(full_tensor(b->weight), whole));
    CHECK(torch::equal(load_tensors(dir + "/n.pt").at("weight"), whole));
    CHECK(torch::equal(load_tensors(dir + "/t.pt").at("0"), whole));
    step(a, oa);
    step(b, ob);
    CHECK(torch::equal(full_tensor(b->weight), full_tensor(a->weight)));
    write_once(
        {a->weight}, "", [] {}, [] {});  // no process saves again while others read
  }
  CHECK(names_in(dir) == std::vector<std::string>{"m.pt", "n.pt", "o.pt", "t.pt"});
}

TEST_CASE("save: an error of the writer is thrown on all ranks, and names it") {
  const std::string dir = folder("failing");
  const auto m = make_linear(1);
  torch::optim::SGD optimizer(m->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto model = m;
  step(model, optimizer);
  // Only the writer's folder is missing: it is the one that writes.
  const std::string path = own_rank() == 0 ? dir + "/none/f.pt" : dir + "/f.pt";
  const auto check = [&](const std::function<void()>& save_it) {
    const std::string text = error_text(save_it);
    CHECK_THAT(text, Catch::Contains("rank 0:") && Catch::Contains(dir + "/none/f.pt") &&
                         Catch::Contains("No such file or directory"));
  };
  check([&] { save(*m, path); });
  check([&] { save(optimizer, path); });
  check([&] { save(state_dict(*m), path); });
  check([&] { save(m->weight, path); });
  CHECK(names_in(dir).empty());
  // What a module's own save() throws on another rank.
  struct OddImpl : torch::nn::Module {
    OddImpl() { w = register_parameter("w", torch::ones({4})); }
    void save(torch::serialize::OutputArchive& a) const override {
      TORCH_CHECK(own_rank() != 1, "this module cannot be saved here");
      torch::nn::Module::save(a);
    }
    torch::Tensor w;
  };
  const auto odd = std::make_shared<OddImpl>();
  distribute_module(*odd, mesh());
  CHECK_THAT(
      error_text([&] { save(*odd, dir + "/odd.pt"); }),
      Catch::Contains("rank 1: ") && Catch::Contains("this module cannot be saved here") && Catch::Contains("odd.pt"));
  CHECK_NOTHROW(save(*m, dir + "/after.pt"));  // the job goes on
}

TEST_CASE("save: a writer that takes longer than the deadline of a wait") {
  const double deadline = std::atof(std::getenv("DTENSOR_TIMEOUT"));
  REQUIRE(deadline <= 10);
  const auto start = std::chrono::steady_clock::now();
  int writes = 0;
  write_once(
      {make_linear(1)->weight}, "slow", [] {},
      [&] {
        ++writes;
        std::this_thread::sleep_for(std::chrono::duration<double>(deadline + 2));
      });
  CHECK(writes == (own_rank() == 0 ? 1 : 0));
  // No process returns before the file is written.
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= deadline + 1);
}

TEST_CASE("save: without distributed tensors no process waits") {
  const std::string path = folder("plain") + "/m" + std::to_string(own_rank()) + ".pt";
  const torch::nn::Linear model(3, 2);
  CommDebugMode comm;
  if (own_rank() % 2 == 0) save(*model, path);
  save(NamedTensors{{"rank", torch::full({1}, own_rank())}}, path);
  CHECK(load_tensors(path).at("rank").item<int64_t>() == own_rank());
  CHECK(comm.total() == 0);
}

TEST_CASE("save: states of an optimizer belong to their parameters, whatever their addresses") {
  const std::string path = folder("order") + "/o.pt";
  // Parameters of one shape whose addresses are in another order on every rank.
  constexpr int kParameters = 24;
  std::vector<torch::Tensor> parameters(kParameters);
  std::vector<std::vector<char>> between;
  for (int i = 0; i < kParameters; ++i) {
    const int place = (i * (own_rank() % 2 == 0 ? 1 : 7) + static_cast<int>(own_rank())) % kParameters;
    parameters[place] = full({8}, 1.0, mesh(), {Shard(0)}).requires_grad_();
    between.emplace_back(100 + 37 * own_rank() * i);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int i = 0; i < kParameters; ++i) parameters[i].mutable_grad() = full({8}, i + 1.0, mesh(), {Shard(0)});
  optimizer.step();
  save(optimizer, path);
  std::vector<torch::Tensor> plain;
  for (int i = 0; i < kParameters; ++i) plain.push_back(torch::ones({8}).requires_grad_());
  torch::optim::SGD other(plain, 0.1);
  load(other, path);
  for (int i = 0; i < kParameters; ++i) {
    INFO(i);
    const auto& state = *other.state().at(plain[i].unsafeGetTensorImpl());
    CHECK(torch::equal(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer(),
                       torch::full({8}, i + 1.0)));
  }
}

TEST_CASE("save: on some ranks only") {
  const int64_t n = job_world().size();
  if (n < 4) return;
  const DeviceMesh odd(job_world(), {n / 2}, {"odd"}, n == 4 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{});
  if (own_rank() % 2 == 0) return;
  const std::string path = folder("some") + "/t.pt";
  const at::Tensor t = full({5}, 2.0, odd, {Shard(0)});
  save(t, path);
  CHECK(torch::equal(load_tensors(path).at("0"), torch::full({5}, 2.0)));
  CHECK_THAT(error_text([&] { save(t, own_rank() == 1 ? path + "/none" : path); }), Catch::Contains("rank 1:"));
}

}  // namespace dtensor
