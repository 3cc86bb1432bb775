// Operators on lists of Partial tensors reduce all of a list in one collective.
#include <torch/nn.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// Partial tensors, and their plain values.
struct PartialLists {
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  Tensors partial, whole;

  explicit PartialLists(int64_t count = 50) {
    torch::manual_seed(3);
    for (int64_t i = 0; i < count; ++i) {
      Tensors parts;
      for (int r = 0; r < 4; ++r) parts.push_back(torch::randn({i % 5 + 1, 3}, torch::kDouble));
      whole.push_back(torch::stack(parts).sum(0));
      partial.push_back(from_local(parts, mesh, {Partial()}) * 1);  // whose parts were never exposed
    }
  }
};

void check(const Tensors& actual, const Tensors& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK(torch::allclose(full_tensor(actual[i]), expected[i], 1e-10, 1e-12));
}

}  // namespace

TEST_CASE("foreach operators: a list of Partials is reduced in one collective") {
  const std::vector<std::function<Tensors(const Tensors&)>> operators = {
      [](const Tensors& l) { return torch::_foreach_norm(l, 2); },
      [](const Tensors& l) { return torch::_foreach_sqrt(torch::_foreach_abs(l)); },
      [](const Tensors& l) { return torch::_foreach_mul(l, l); },
      [](const Tensors& l) { return torch::_foreach_div(torch::_foreach_add(l, l), l); },
      [](const Tensors& l) { return torch::_foreach_addcmul(l, l, l, 0.5); },
      [](const Tensors& l) { return torch::_foreach_clamp_max(l, 0.25); },
  };
  for (size_t k = 0; k < operators.size(); ++k) {
    CAPTURE(k);
    PartialLists lists;
    CommDebugMode comm;
    const Tensors results = operators[k](lists.partial);
    CHECK(comm.total() == 1);
    check(results, operators[k](lists.whole));
  }
}

TEST_CASE("foreach operators: sums, and products with replicated tensors, stay Partial") {
  PartialLists lists;
  CommDebugMode comm;
  const Tensor half = torch::scalar_tensor(0.5, torch::kDouble);
  const Tensors results = torch::_foreach_mul(
      torch::_foreach_sub(torch::_foreach_add(lists.partial, lists.partial, 2), torch::_foreach_neg(lists.partial)),
      half);
  CHECK(comm.total() == 0);
  for (const Tensor& t : results) CHECK(DTensor(t).placements() == Placements{Partial()});
  check(results, torch::_foreach_mul(lists.whole, 2));
}

TEST_CASE("foreach operators: norm of Partial gradients and scaling take one collective") {
  PartialLists lists;
  Tensors parameters, plain;
  for (size_t i = 0; i < lists.whole.size(); ++i) {
    parameters.push_back(zeros(lists.whole[i].sizes().vec(), lists.mesh, {Replicate()},
                               {.dtype = torch::kDouble, .requires_grad = true}));
    parameters.back().mutable_grad() = lists.partial[i];
    plain.push_back(torch::zeros_like(lists.whole[i]).requires_grad_());
    plain.back().mutable_grad() = lists.whole[i].clone();
  }
  CommDebugMode comm;
  const Tensor norm = torch::stack(torch::_foreach_norm(lists.partial, 2)).norm(2);
  torch::_foreach_mul_(lists.partial, 1 / norm);
  CHECK(comm.total() == 1);
  const Tensor plain_norm = torch::stack(torch::_foreach_norm(lists.whole, 2)).norm(2);
  CHECK(torch::allclose(full_tensor(norm), plain_norm));
  torch::_foreach_mul_(lists.whole, 1 / plain_norm);
  check(lists.partial, lists.whole);
}

}  // namespace dtensor
