// Exchanges of chunks that are under way while products compute. Runs in every rank's process.
#include <torch/nn.h>

#include <chrono>
#include <functional>
#include <string>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/overlap_communication.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/redistribute.h"
#include "tests/processes/job_world.h"
#include "tests/processes/rank_flag.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// Ranks other than 0 begin no exchange from number `held` on before rank 0 has computed `products` products. If rank 0
// waited for such an exchange before, all would wait for each other.
class HeldBack : public internal::CommListener {
 public:
  HeldBack(const std::string& name, int held, int products)
      : flag_(name),
        held_(held),
        products_(products),
        guard_([this](internal::Scope& s) { s.listeners.push_back(this); }) {}
  void on_comm(const CommEvent&, bool before) override {
    if (!before) return;
    if (!is_first() && num_exchanges_ >= held_) was_raised_ = was_raised_ && flag_.wait(std::chrono::seconds(10));
    ++num_exchanges_;
  }
  void on_work(const internal::WorkEvent& event) override {
    if (event.flops > 0 && ++num_products_ == products_ && is_first()) flag_.raise();
  }
  bool was_raised() const { return was_raised_; }
  int num_exchanges() const { return num_exchanges_; }

 private:
  static bool is_first() { return job_world().owned_ranks().front() == 0; }

  RankFlag flag_;
  const int held_, products_;
  int num_exchanges_ = 0, num_products_ = 0;
  bool was_raised_ = true;
  internal::ScopeGuard guard_;
};

Tensor values(std::vector<int64_t> sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).sin().view(sizes);
}

nn::Linear make_linear() {
  nn::Linear linear(8, 12);
  const torch::NoGradGuard no_grad;
  linear->weight.set_data(values({12, 8}));
  linear->bias.set_data(values({12}));
  return linear;
}

void check_held_back(const std::string& name, const ParallelStyle& style, const Placements& input, int held,
                     int products) {
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"tp"});
  nn::Linear linear = make_linear(), plain = make_linear();
  parallelize_module(*linear, mesh, {{"", style}});
  const Tensor x = distribute_tensor(values({1, 16, 8}), mesh, input);
  const torch::NoGradGuard no_grad;
  const OverlapCommunication scope({.chunks = 4});
  Tensor out;
  {
    const HeldBack held_back(name, held, products);
    out = linear(x);
    CHECK(held_back.was_raised());
    CHECK(held_back.num_exchanges() == 4);
  }
  CHECK(torch::allclose(full_tensor(out), plain(values({1, 16, 8}))));
}

// Backward of a column-wise layer, whose gradients of rows are reduced and scattered.
void check_held_back_backward(const std::string& name, int held, int products) {
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"tp"});
  nn::Linear linear = make_linear(), plain = make_linear();
  parallelize_module(*linear, mesh, {{"", ColwiseParallel()}});
  const Tensor plain_x = values({1, 16, 8}).requires_grad_(),
               x = distribute_tensor(values({1, 16, 8}), mesh, {Shard(1)}).requires_grad_();
  plain(plain_x).sin().sum().backward();
  Tensor loss;
  {
    const OverlapCommunication scope({.chunks = 4});
    loss = linear(x).sin().sum();
  }
  {
    const HeldBack held_back(name, held, products);
    loss.backward();
    CHECK(held_back.was_raised());
    CHECK(held_back.num_exchanges() == 4);
  }
  CHECK(torch::allclose(full_tensor(x.grad()), plain_x.grad()));
  CHECK(torch::allclose(full_tensor(linear->weight.grad()), plain->weight.grad()));
  CHECK(torch::allclose(full_tensor(linear->bias.grad()), plain->bias.grad()));
}

}  // namespace

TEST_CASE("overlap: a chunk is multiplied while the next one has not been gathered") {
  check_held_back("first product", ColwiseParallel(), {Shard(1)}, /*held=*/1, /*products=*/1);
  check_held_back("third product", ColwiseParallel(), {Shard(1)}, /*held=*/3, /*products=*/3);
}

TEST_CASE("overlap: chunks are multiplied while those before have not been reduced") {
  check_held_back("all products", RowwiseParallel({.output = Shard(1)}), {Shard(2)}, /*held=*/0, /*products=*/4);
}

TEST_CASE("overlap: the gradient of the weight is computed while no gradient of rows has been reduced") {
  check_held_back_backward("gradient of the weight", /*held=*/0, /*products=*/5);
}

}  // namespace dtensor
