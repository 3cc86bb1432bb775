// Backward in two parts against backward() in one: the same gradients, and no product computed twice.
#include "dtensor/gradients/split_backward.h"

#include <ATen/record_function.h>
#include <torch/nn.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// How often aten::mm runs while it lives.
class CountProducts {
 public:
  CountProducts() {
    count() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          if (std::string(call.name()) == "aten::mm") ++count();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountProducts() { at::removeCallback(handle_); }
  static int& count() {
    static int n = 0;
    return n;
  }

 private:
  at::CallbackHandle handle_;
};

Tensor numbers(c10::IntArrayRef sizes, double seed) {
  return (torch::arange(c10::multiply_integers(sizes), torch::kDouble) + seed).view(sizes).sin();
}

// A function of an input and weights [4, 4], whose result need not be one number.
using Model = std::function<Tensor(const Tensor& x, const Tensors& weights)>;

struct Gradients {
  Tensor input;
  Tensors weights;
};

struct Leaves {
  Tensor x;
  Tensors weights;
};

Leaves plain_leaves() {
  Leaves leaves{numbers({3, 4}, 1).requires_grad_(), {}};
  for (int i = 0; i < 3; ++i) leaves.weights.push_back(numbers({4, 4}, 20 + i).requires_grad_());
  return leaves;
}

Gradients whole(const Model& model) {
  const Leaves leaves = plain_leaves();
  const Tensor y = model(leaves.x, leaves.weights);
  y.backward(numbers(y.sizes(), 5), /*retain_graph=*/true);
  Gradients result{leaves.x.grad(), {}};
  for (const Tensor& w : leaves.weights) result.weights.push_back(w.grad());
  return result;
}

void check_split(const Model& model) {
  const Gradients expected = whole(model);
  const Leaves leaves = plain_leaves();
  internal::SplitBackward rest;
  {
    const Tensor y = model(leaves.x, leaves.weights);
    const Tensor g = internal::backward_input(y, numbers(y.sizes(), 5), leaves.x, rest);
    REQUIRE(g.defined() == expected.input.defined());
    if (g.defined()) CHECK(torch::allclose(g, expected.input, 1e-12, 1e-12));
    CHECK(!leaves.x.grad().defined());
    for (const Tensor& w : leaves.weights) CHECK(!w.grad().defined());
  }
  internal::backward_weight(std::move(rest));
  CHECK(!leaves.x.grad().defined());
  for (size_t i = 0; i < leaves.weights.size(); ++i) {
    INFO("weight " << i);
    REQUIRE(leaves.weights[i].grad().defined() == expected.weights[i].defined());
    if (expected.weights[i].defined())
      CHECK(torch::allclose(leaves.weights[i].grad(), expected.weights[i], 1e-12, 1e-12));
  }
}

TEST_CASE("a split backward of any graph gives the gradients of a whole one") {
  const auto chain = [](const Tensor& x, const Tensors& w) { return x.mm(w[0]).tanh().mm(w[1]).tanh().mm(w[2]); };
  check_split(chain);
  check_split([&](const Tensor& x, const Tensors& w) { return chain(x, w).pow(2).mean(); });
  // A weight that is used twice, on the way to the input both times, and a residual.
  check_split([](const Tensor& x, const Tensors& w) { return x + x.mm(w[0]).tanh().mm(w[0]).mm(w[1].mm(w[2])); });
  // A part without the input.
  check_split([](const Tensor& x, const Tensors& w) { return x.mm(w[0]) + w[1].mm(w[2]).exp().sum(); });
  // Several results of one operator, and a weight that is an input of many.
  check_split([](const Tensor& x, const Tensors& w) {
    const auto parts = (x.mm(w[0]) * w[1].sum()).split(2, 1);
    return parts[0].mm(w[1].slice(0, 0, 2)) + parts[1].mm(w[2].slice(0, 1, 3));
  });
  // Only the second of two results leads on.
  check_split([](const Tensor& x, const Tensors& w) { return x.mm(w[0]).split(2, 1)[1].mm(w[1].slice(0, 0, 2)); });
  // No weight at all, no input at all, and the input itself.
  check_split([](const Tensor& x, const Tensors&) { return x.exp(); });
  check_split([](const Tensor&, const Tensors& w) { return w[0].mm(w[1]); });
  check_split([](const Tensor& x, const Tensors&) { return x; });
}

TEST_CASE("hooks that change the gradient of an activation change it once in a split backward") {
  check_split([](const Tensor& x, const Tensors& w) {
    const Tensor h = x.mm(w[0]);
    h.register_hook([](const Tensor& g) { return g * 3; });
    return h.tanh().mm(w[1]);
  });
}

TEST_CASE("no product of a split backward is computed twice") {
  const auto model = [](const Tensor& x, const Tensors& w) { return x.mm(w[0]).tanh().mm(w[1]).tanh().mm(w[2]); };
  const Leaves leaves = plain_leaves();
  internal::SplitBackward rest;
  {
    const Tensor y = model(leaves.x, leaves.weights).sum();
    const CountProducts products;
    internal::backward_input(y, {}, leaves.x, rest);
    CHECK(CountProducts::count() == 3);
  }
  const CountProducts products;
  internal::backward_weight(std::move(rest));
  CHECK(CountProducts::count() == 3);
}

TEST_CASE("a split backward frees activations that its second part does not need after the first") {
  const Leaves leaves = plain_leaves();
  internal::SplitBackward rest;
  c10::weak_intrusive_ptr<c10::TensorImpl> of_tanh = [&] {
    const Tensor h = leaves.x.mm(leaves.weights[0]).tanh();
    const Tensor y = h.exp().sum();
    internal::backward_input(y, {}, leaves.x, rest);
    return c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
  }();
  CHECK(of_tanh.expired());
  internal::backward_weight(std::move(rest));
  CHECK(leaves.weights[0].grad().defined());
}

TEST_CASE("a split backward of distributed tensors has the gradients of one device, reduced once") {
  const auto model = [](const Tensor& x, const Tensors& w) { return x.mm(w[0]).tanh().mm(w[1]).pow(2).sum(); };
  const Leaves plain = plain_leaves();
  model(plain.x, plain.weights).backward();

  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const Tensor x = distribute_tensor(plain.x.detach(), mesh, {Shard(0), Replicate()}).requires_grad_();
  const Tensors weights = {
      distribute_tensor(plain.weights[0].detach(), mesh, {Replicate(), Shard(1)}).requires_grad_(),
      distribute_tensor(plain.weights[1].detach(), mesh, {Replicate(), Shard(0)}).requires_grad_()};
  internal::SplitBackward rest;
  const Tensor g = internal::backward_input(model(x, weights), {}, x, rest);
  CHECK(torch::allclose(full_tensor(g), plain.x.grad()));
  CommDebugMode comm;
  internal::backward_weight(std::move(rest));
  CHECK(comm.total() == 1);  // both gradients over dp
  for (int i = 0; i < 2; ++i) CHECK(torch::allclose(full_tensor(weights[i].grad()), plain.weights[i].grad()));
}

}  // namespace
}  // namespace dtensor
