// Files that other releases of LibTorch wrote (tests/checkpoint/releases), and those of this one, on another mesh.
#include "tests/checkpoint/release_files.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <glob.h>
#include <sys/stat.h>
#include <torch/serialize.h>

#include <map>

#include "dtensor/distribute_module.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

using testing::TempFolder;

std::vector<std::string> folders() {
  ::glob_t found;
  ::glob("tests/checkpoint/releases/libtorch-*", 0, nullptr, &found);
  std::vector<std::string> folders(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return folders;
}

struct Trained {
  torch::nn::Sequential model = testing::release_model();
  torch::optim::Adam optimizer = testing::release_optimizer(model);
};

// Split over three ranks, which divides nothing evenly; all values are zero.
Trained distributed() {
  static const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  Trained t;
  distribute_module(*t.model, mesh, [](const std::string& name, torch::nn::Module& module, const DeviceMesh& where) {
    if (name != "0" && name != "2") return;
    for (auto& p : module.named_parameters(/*recurse=*/false)) {
      p.value().set_data(distribute_tensor(p.value().detach(), where, {Shard(0)}));
    }
  });
  const at::NoGradGuard no_grad;
  for (const at::Tensor& p : t.model->parameters()) p.zero_();
  return t;
}

at::Tensor whole(const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

void check_values(const NamedTensors& found) {
  Trained plain;
  testing::train(plain.model, plain.optimizer);
  std::map<std::string, at::Tensor> by_name(found.begin(), found.end());
  size_t checked = 0;
  for (const auto& [name, value] : state_dict(*plain.model)) {
    INFO(name);
    REQUIRE(by_name.count(name) == 1);
    CHECK(at::allclose(whole(by_name[name]), value, 1e-6, 1e-6));
    ++checked;
  }
  CHECK(checked == 9);
}

// The next step is that of the optimizer that was saved.
void check_next_step(Trained& t) {
  Trained plain;
  testing::train(plain.model, plain.optimizer);
  const auto step = [](Trained& of) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : of.model->parameters()) p.mutable_grad() = at::full_like(p, -1.0);
    of.optimizer.step();
  };
  step(plain);
  step(t);
  for (size_t i = 0; i < plain.model->parameters().size(); ++i) {
    CHECK(at::allclose(whole(t.model->parameters()[i]), plain.model->parameters()[i], 1e-6, 1e-6));
  }
}

void check_files(const std::string& folder) {
  INFO(folder);
  for (const char* file : {"module.pt", "named.pt", "named.safetensors", "hugging_face"}) {
    INFO(file);
    Trained t = distributed();
    load(*t.model, folder + "/" + file);
    check_values(state_dict(*t.model));
  }
  at::Tensor tensor;
  load(tensor, folder + "/tensor.pt");
  CHECK(at::equal(tensor, testing::release_tensor()));
  {
    Trained t = distributed();
    load(*t.model, folder + "/module.pt");
    load(t.optimizer, folder + "/adam.pt");
    check_next_step(t);
  }
  Trained t = distributed();
  tensor = at::zeros({3, 4}, at::kDouble);
  CheckpointContents contents{
      .modules = {{"model", &*t.model}}, .optimizers = {{"adam", &t.optimizer}}, .tensors = {{"tensor", tensor}}};
  contents.random_state = false;
  load_checkpoint(folder + "/checkpoint", contents);
  CHECK(std::get<int64_t>(contents.values.at("step")) == 7);
  CHECK(at::equal(tensor, testing::release_tensor()));
  check_values(state_dict(*t.model));
  check_next_step(t);
}

TEST_CASE("release_files: files of other releases of LibTorch are read") {
  const auto found = folders();
  REQUIRE(found.size() >= 2);
  for (const std::string& folder : found) check_files(folder);
}

TEST_CASE("release_files: files written by this release are read") {
  const TempFolder folder;
  const std::string files = folder / "files";
  REQUIRE(::mkdir(files.c_str(), 0700) == 0);
  testing::write_release_files(files);
  check_files(files);
}

TEST_CASE("release_files: LibTorch's own torch::load reads them into plain tensors") {
  const auto found = folders();
  REQUIRE(found.size() >= 2);
  for (const std::string& folder : found) {
    INFO(folder);
    Trained plain;
    torch::load(plain.model, folder + "/module.pt");
    torch::load(plain.optimizer, folder + "/adam.pt");
    check_values(state_dict(*plain.model));
    check_next_step(plain);
  }
}

}  // namespace
}  // namespace dtensor
