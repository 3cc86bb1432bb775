// Packed sequences of unsorted lengths, through torch::nn: LibTorch sorts the batch by a plain permutation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn.h>

#include <optional>
#include <tuple>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

namespace rnn = torch::nn::utils::rnn;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kSteps = 4, kInputFeatures = 3, kHidden = 2;

struct Case {
  std::vector<int64_t> lengths;
  bool batch_first;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{2, 4, 1, 3, 4}, false}, {{2, 4, 1, 3, 4}, true}, {{1, 3}, true}, {{4, 3, 1}, false}, {{3}, true}};
  return all;
}

at::Tensor longs(const std::vector<int64_t>& numbers) { return at::tensor(numbers); }

at::Tensor on_mesh(const at::Tensor& t, const DeviceMesh* mesh, const Placements& placements) {
  return (mesh == nullptr ? t.clone() : lay_out(t, *mesh, placements)).detach().requires_grad_();
}

// The outputs, states and gradients of an LSTM.
Tensors run(const Case& c, const Tensors& values, const DeviceMesh* mesh, const Placements& placements) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(kInputFeatures, kHidden).bidirectional(true).batch_first(c.batch_first));
  lstm->to(torch::kDouble);
  const auto parameters = lstm->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor value = at::linspace(-0.5, 0.5, parameters[i].numel(), at::kDouble).add(0.01 * static_cast<double>(i));
    value = value.view(parameters[i].sizes());
    if (mesh != nullptr) value = distribute_tensor(value, *mesh);
    parameters[i].set_data(value);
  }
  const Placements whole(placements.size(), Replicate());
  const at::Tensor x = on_mesh(values[0], mesh, placements);
  const at::Tensor h = on_mesh(values[1], mesh, whole), state = on_mesh(values[2], mesh, whole);
  const auto packed = rnn::pack_padded_sequence(x, torch::tensor(c.lengths), c.batch_first, /*enforce_sorted=*/false);
  auto [y, states] = lstm->forward_with_packed_input(packed, std::tuple(h, state));
  auto [padded, lengths] = rnn::pad_packed_sequence(y, c.batch_first);
  CHECK(at::equal(lengths, torch::tensor(c.lengths)));
  const auto& [last_h, last_state] = states;
  (padded.square().sum() + last_h.sin().sum() + last_state.exp().sum()).backward();
  Tensors results{padded, last_h, last_state, x.grad(), h.grad(), state.grad()};
  for (const at::Tensor& p : parameters) results.push_back(p.grad());
  return results;
}

}  // namespace

TEST_CASE("an LSTM on sequences in any order equals one device", "[ops][packed]") {
  for (const Case& c : cases()) {
    const auto batch = static_cast<int64_t>(c.lengths.size());
    const Tensors values{at::rand(c.batch_first ? std::vector<int64_t>{batch, kSteps, kInputFeatures}
                                                : std::vector<int64_t>{kSteps, batch, kInputFeatures},
                                  at::kDouble),
                         at::rand({2, batch, kHidden}, at::kDouble), at::rand({2, batch, kHidden}, at::kDouble)};
    const Tensors expected = run(c, values, nullptr, {});
    for (const DeviceMesh& mesh : test_meshes()) {
      for (const Placement& p : {Replicate(), Shard(0), Shard(1), Shard(2)}) {
        for (const bool in_scope : {false, true}) {
          Placements placements(mesh.ndim(), Replicate());
          placements.back() = p;
          std::optional<MeshScope> scope;
          if (in_scope) scope.emplace(mesh);
          const Tensors actual = run(c, values, &mesh, placements);
          CAPTURE(mesh.to_string(), to_string(placements), c.lengths, c.batch_first, in_scope);
          for (size_t k = 0; k < expected.size(); ++k) CHECK(difference(actual[k], expected[k]).value_or("") == "");
        }
      }
    }
  }
}

TEST_CASE("a permutation of a split dim moves each row at most once, and its gradient back", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor values = at::rand({8, 16}, at::kDouble), order = longs({3, 0, 1, 2, 7, 6, 5, 4});
  const at::Tensor x = distribute_tensor(values, mesh, {Shard(0)}).requires_grad_();
  const CommDebugMode comm;
  const at::Tensor y = at::index_select(x, 0, order);
  CHECK(to_string(DTensor(y).placements()) == "S(0)");
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 2 * 16 * 8);  // both rows of the ranks that receive most
  CHECK(difference(y, at::index_select(values, 0, order)).value_or("") == "");
  const at::Tensor factors = distribute_tensor(values + 1, mesh, {Shard(0)});
  (y * factors).sum().backward();
  CHECK(difference(x.grad(), at::zeros_like(values).index_copy(0, order, values + 1)).value_or("") == "");
}

TEST_CASE("a plain index that is not a permutation is an error next to a distributed tensor", "[ops][packed]") {
  const at::Tensor x = distribute_tensor(at::rand({5, 2}), test_meshes()[0], {Shard(0)});
  for (const std::vector<int64_t>& index :
       {std::vector<int64_t>{0, 1}, {0, 1, 2, 3, 3}, {0, 1, 2, 3, 5}, {4, 3, 2, 1, 0, 0}}) {
    CHECK_THROWS_WITH(at::index_select(x, 0, at::tensor(index)), Catch::Contains("is a plain tensor of shape"));
  }
}

// As LibTorch inverts the permutation.
TEST_CASE("in a MeshScope only factories' tensors are written to plain ones", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const MeshScope scope(mesh);
  const at::Tensor order = longs({2, 0, 1});
  at::Tensor inverse = at::empty_like(order);
  CommDebugMode comm;
  inverse.scatter_(0, order, at::arange(3));
  CHECK(comm.total() == 0);
  CHECK_FALSE(is_dtensor(inverse));
  CHECK(at::equal(inverse, longs({1, 2, 0})));
  CHECK_THROWS_WITH(inverse.copy_(distribute_tensor(longs({1, 2, 3}), mesh)),
                    Catch::Contains("writes to a plain tensor"));
  at::Tensor written = at::arange(3);
  written.copy_(distribute_tensor(longs({1, 2, 3}), mesh));
  CHECK_THROWS_WITH(inverse.copy_(written), Catch::Contains("writes to a plain tensor"));
}

}  // namespace dtensor::testing
