// Constants that are plain members of a module: named in the error, made distributed by one line.
#include <torch/nn.h>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using Catch::Contains;
using torch::Tensor;

// A rotary table and a scale, as plain members like in public code.
struct Rotary : torch::nn::Module {
  explicit Rotary(int64_t width)
      : project(register_module("project", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))) {
    freqs = torch::outer(torch::arange(5, torch::kFloat), torch::arange(width, torch::kFloat)).cos().unsqueeze(0);
    scales = {torch::full({width}, 2.0), torch::full({width}, 3.0)};
  }
  Tensor forward(const Tensor& x) { return project(x) * freqs * scales[0] + scales[1]; }

  torch::nn::Linear project;
  Tensor freqs;
  std::vector<Tensor> scales;
};

const DeviceMesh& mesh() {
  static const DeviceMesh m(World::local(4), {2, 2}, {"dp", "tp"});
  return m;
}

void shard(const std::string& name, torch::nn::Module& module, const DeviceMesh& on) {
  if (name == "project") shard_parameter(module, "weight", on, {Replicate(), Shard(0)});
}

}  // namespace

TEST_CASE("replicate_members: a module with plain members computes as on one device", "[dtensor]") {
  torch::manual_seed(1);
  const auto net = std::make_shared<Rotary>(6);
  const Tensor x = torch::randn({4, 5, 6}), expected = net->forward(x);
  const Tensor one = torch::ones({1}), freqs = net->freqs;
  distribute_module(*net, mesh(), shard);
  const Tensor batch = distribute_tensor(x, mesh(), {Shard(0), Replicate()});

  const std::string text = testing::error_text([&] {
    const ModulePath running("encoder.rotary");
    net->forward(batch);
  });
  CHECK_THAT(text, Contains("aten::mul") && Contains("in module 'encoder.rotary'") &&
                       Contains("replicate_members(module, {&module.member})"));
  CHECK(text.find("replicate_members") < text.find("distribute_tensor"));
  CHECK(text.find("replicate_members") < text.find("MeshScope"));

  replicate_members(*net, {&net->freqs, &net->scales[0], &net->scales[1]});
  CHECK(DTensor(net->freqs).mesh() == mesh());
  CHECK(DTensor(net->freqs).placements() == Placements{Replicate(), Replicate()});
  CHECK_FALSE(is_dtensor(freqs));  // another handle
  CHECK(torch::allclose(full_tensor(net->forward(batch)), expected, 1e-5, 1e-6));
  replicate_members(*net, {&net->freqs});  // a repeated call changes nothing
}

TEST_CASE("replicate_members: the error names the module of the parameter next to the plain tensor", "[dtensor]") {
  torch::nn::Sequential net(torch::nn::Linear(3, 3));
  distribute_module(*net, mesh());
  CHECK_THAT(testing::error_text([&] {
               net[0]->as<torch::nn::Linear>()->weight* torch::ones({3, 3});
             }),
             Contains("in module '0'"));
}

TEST_CASE("replicate_members: two members that are one tensor stay one, and keep requires_grad", "[dtensor]") {
  Tensor a = torch::ones({3}).requires_grad_(), b = a;
  replicate_members(mesh(), {&a, &b});
  CHECK(a.is_same(b));
  CHECK(a.requires_grad());
  CHECK(a.is_leaf());
}

TEST_CASE("replicate_members: invalid members are an error before anything changes", "[dtensor]") {
  Tensor good = torch::ones({2}), undefined, computed = torch::ones({2}).requires_grad_() * 2;
  Tensor split = distribute_tensor(torch::ones({2}), mesh(), {Shard(0), Replicate()});
  const auto error = [&](const std::vector<Tensor*>& members) {
    return testing::error_text([&] { replicate_members(mesh(), members); });
  };
  CHECK_THAT(error({&good, &undefined}), Contains("member 1 is an undefined tensor"));
  CHECK_THAT(error({&good, nullptr}), Contains("member 1 is a null pointer"));
  CHECK_THAT(error({&good, &computed}), Contains("member 1") && Contains("[2]") && Contains("autograd history"));
  CHECK_THAT(error({&split}), Contains("member 0") && Contains("S(0)R"));
  CHECK_FALSE(is_dtensor(good));
  torch::nn::Linear plain(2, 2);
  CHECK_THAT(testing::error_text([&] { replicate_members(*plain, {&good}); }), Contains("distribute_module() first"));
  torch::nn::Sequential stages(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  distribute_module(*stages[0], mesh()["dp"]);
  distribute_module(*stages[1], mesh()["tp"]);
  CHECK_THAT(testing::error_text([&] { replicate_members(*stages, {&good}); }),
             Contains("'1.weight'") && Contains("replicate_members(mesh, {...})"));
}

}  // namespace dtensor
