// A residual network, whose images are split over ranks, learns what it learns on one device: parameters, running
// statistics, outputs in eval mode.
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/torch.h>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t channels)
      : conv1(register_module(
            "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(channels))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(channels))) {}
  Tensor forward(const Tensor& x) { return torch::relu(bn2(conv2(torch::relu(bn1(conv1(x))))) + x); }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
};
TORCH_MODULE(Block);

struct ResNetImpl : torch::nn::Module {
  ResNetImpl()
      : stem(register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)))),
        bn(register_module("bn", torch::nn::BatchNorm2d(4))),
        block(register_module("block", Block(4))),
        head(register_module("head", torch::nn::Linear(4, 5))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& images) {
    auto x = torch::max_pool2d(torch::relu(bn(stem(images))), 2);
    return head(torch::adaptive_avg_pool2d(block(x), {1, 1}).flatten(1));
  }

  torch::nn::Conv2d stem;
  torch::nn::BatchNorm2d bn;
  Block block;
  torch::nn::Linear head;
};
TORCH_MODULE(ResNet);

void distribute(torch::nn::Module& module, const DeviceMesh& mesh, const Placement& p) {
  torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    item.value().set_data(distribute_tensor(item.value().detach(), mesh, {item.value().dim() > 0 ? p : Replicate()}));
  }
  for (auto& item : module.named_buffers()) {
    item.value().set_data(distribute_tensor(item.value(), mesh, {item.value().dim() > 0 ? p : Replicate()}));
  }
}

void check_alike(torch::nn::Module& a, torch::nn::Module& b) {
  const auto check = [](const auto& plain, const auto& distributed) {
    for (const auto& item : plain) {
      CAPTURE(item.key());
      const Tensor& t = *distributed.find(item.key());
      REQUIRE(is_dtensor(t));
      CHECK(torch::allclose(full_tensor(t.detach()), item.value(), 1e-9, 1e-11));
    }
  };
  check(a.named_parameters(), b.named_parameters());
  check(a.named_buffers(), b.named_buffers());
}

}  // namespace

TEST_CASE("a residual network trains on a split batch as on one device") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  for (const Placement& p : {Replicate(), Shard(0)}) {
    CAPTURE(to_string(Placements{p}));
    torch::manual_seed(0);
    ResNet plain;
    torch::manual_seed(0);
    ResNet net;
    distribute(*net, mesh, p);
    torch::optim::SGD plain_sgd(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    CommDebugMode comm;
    for (int step = 0; step < 3; ++step) {
      const auto images = torch::rand({5, 3, 8, 8}, torch::kDouble);
      const auto labels = torch::randint(5, {5});
      plain_sgd.zero_grad();
      const auto plain_loss = torch::cross_entropy_loss(plain(images), labels);
      plain_loss.backward();
      plain_sgd.step();
      sgd.zero_grad();
      const auto loss = torch::cross_entropy_loss(net(distribute_tensor(images, mesh, {Shard(0)})),
                                                  distribute_tensor(labels, mesh, {Shard(0)}));
      loss.backward();
      sgd.step();
      CHECK(torch::allclose(full_tensor(loss.detach()), plain_loss.detach(), 1e-10, 1e-12));
    }
    check_alike(*plain, *net);
    std::ostringstream report;
    report << comm;
    // Weights that are whole wait for a batch as it is; those that are split are gathered.
    if (p == Replicate()) CHECK_THAT(report.str(), !Catch::Contains("aten::convolution"));

    plain->eval();
    net->eval();
    const auto image = torch::rand({3, 3, 8, 8}, torch::kDouble);
    const auto y = net(distribute_tensor(image, mesh, {Shard(0)}));
    CHECK(torch::allclose(full_tensor(y.detach()), plain(image).detach(), 1e-9, 1e-11));
    check_alike(*plain, *net);  // eval leaves the statistics alone
  }
}

}  // namespace dtensor
