// Recurrent networks: a split batch stays split, forward and backward, without communication.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/_pad_packed_sequence.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/gru_cell.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/lstm_cell.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/rnn_tanh_cell.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Shapes = std::vector<std::vector<int64_t>>;

template <typename Tuple>
Tensors results_of(const Tuple& t) {
  return std::apply([](auto&... x) { return Tensors{x...}; }, t);
}

Tensors from(const Tensors& t, size_t first) { return {t.begin() + static_cast<std::ptrdiff_t>(first), t.end()}; }

// [3 steps, 5 sequences, 2 features], states of 3.
Shapes shapes(size_t states, int64_t gates, int64_t layers = 1, bool biases = true) {
  Shapes result = {{3, 5, 2}};
  for (size_t s = 0; s < states; ++s) result.push_back({layers, 5, 3});
  for (int64_t l = 0; l < layers; ++l) {
    result.push_back({gates * 3, l == 0 ? 2 : 3});
    result.push_back({gates * 3, 3});
    if (biases) result.insert(result.end(), 2, {gates * 3});
  }
  return result;
}

using Fn = std::function<Tensors(const Tensors&)>;
using LayoutOf = std::function<Placement(size_t input, int64_t ndim)>;

struct Run {
  Tensors outputs, grads;
  int64_t forward = 0, backward = 0;  // collectives
};

// `lay`: distributes the values of input i.
Run run(const Tensors& values, const Fn& fn, const std::function<at::Tensor(size_t, const at::Tensor&)>& lay) {
  Tensors leaves;
  for (size_t i = 0; i < values.size(); ++i) leaves.push_back(lay(i, values[i]).detach().requires_grad_());
  Run r;
  {
    CommDebugMode comm;
    r.outputs = fn(leaves);
    r.forward = comm.total();
  }
  at::Tensor loss;
  for (const at::Tensor& o : r.outputs) {
    const at::Tensor part = (o * o).sum();
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  for (const at::Tensor& l : leaves) r.grads.push_back(l.grad());
  return r;
}

// Compares with plain ATen in some layouts: batch split (dim `batch` of the input, 1 of the states), weights split by
// rows, the input by features, by steps, and Partial. The first must not communicate in forward.
void check(const std::string& name, const Shapes& shapes, size_t states, const Fn& fn, int64_t batch = 1,
           double tolerance = 1e-9, c10::ScalarType dtype = at::kDouble) {
  Tensors values;
  for (const auto& s : shapes) values.push_back((at::rand(s, at::TensorOptions(dtype)) - 0.5));
  const Run expected = run(values, fn, [](size_t, const at::Tensor& t) { return t.clone(); });
  const auto state = [&](size_t i) { return i > 0 && i <= states; };
  const std::pair<const char*, LayoutOf> layouts[] = {
      {"batch", [&](size_t i, int64_t) { return i == 0     ? Shard(batch)
                                                : state(i) ? Shard(1)
                                                           : Replicate(); }},
      {"rows of weights", [&](size_t i, int64_t) { return i == 0 || state(i) ? Replicate() : Shard(0); }},
      {"features", [&](size_t i, int64_t ndim) { return i == 0 || state(i) ? Shard(ndim - 1) : Replicate(); }},
      {"steps", [&](size_t i, int64_t) { return i == 0 ? Shard(0) : Replicate(); }},
      {"addends", [&](size_t i, int64_t) { return i == 0 ? Partial() : Replicate(); }},
  };
  for (const DeviceMesh& mesh : test_meshes()) {
    for (const auto& [layout, of] : layouts) {
      INFO(name << ", " << layout << " on " << mesh.to_string());
      const Run actual = run(values, fn, [&, f = of](size_t i, const at::Tensor& t) {
        Placements placements(mesh.ndim(), Replicate());
        placements[0] = f(i, t.dim());
        return lay_out(t, mesh, placements);
      });
      REQUIRE(actual.outputs.size() == expected.outputs.size());
      for (size_t k = 0; k < expected.outputs.size(); ++k)
        CHECK(difference(actual.outputs[k], expected.outputs[k], tolerance).value_or("") == "");
      for (size_t k = 0; k < expected.grads.size(); ++k)
        CHECK(difference(actual.grads[k], expected.grads[k], tolerance).value_or("") == "");
      if (std::string(layout) == "batch") CHECK(actual.forward == 0);
    }
  }
}

TEST_CASE("recurrent networks keep the batch split", "[ops][recurrent]") {
  const auto lstm = [](int64_t layers, bool biases) -> Fn {
    return [=](const Tensors& t) {
      return results_of(at::lstm(t[0], {t[1], t[2]}, from(t, 3), biases, layers, 0., true, false, false));
    };
  };
  check("lstm", shapes(2, 4), 2, lstm(1, true));
  check("lstm of two layers", shapes(2, 4, 2), 2, lstm(2, true));
  check("lstm without biases", shapes(2, 4, 1, false), 2, lstm(1, false));
  check("gru", shapes(1, 3), 1,
        [](const Tensors& t) { return results_of(at::gru(t[0], t[1], from(t, 2), true, 1, 0., true, false, false)); });
  check("rnn_tanh", shapes(1, 1), 1, [](const Tensors& t) {
    return results_of(at::rnn_tanh(t[0], t[1], from(t, 2), true, 1, 0., true, false, false));
  });
  check("rnn_relu", shapes(1, 1), 1, [](const Tensors& t) {
    return results_of(at::rnn_relu(t[0], t[1], from(t, 2), true, 1, 0., true, false, false));
  });
  check("batch first", shapes(2, 4), 2, [](const Tensors& t) {
    return results_of(at::lstm(t[0].transpose(0, 1), {t[1], t[2]}, from(t, 3), true, 1, 0., false, false, true));
  });
  // Plain ATen has a fused layer for these (mkldnn_rnn_layer).
  check("lstm of floats", shapes(2, 4), 2, lstm(1, true), 1, 1e-4, at::kFloat);
}

// A replicated state of zeros must not make every rank compute the first step of the whole batch.
TEST_CASE("recurrent networks: every rank computes its own part of the batch from the first step on",
          "[ops][recurrent]") {
  const DeviceMesh mesh(World::local(4), {4});
  const auto whole = [&](const at::Tensor& t) { return distribute_tensor(t, mesh); };
  const at::Tensor x = at::rand({3, 8, 5}, at::kDouble), h = at::zeros({2, 8, 6}, at::kDouble);
  Tensors params;
  for (const int64_t inputs : {5, 6}) {
    params.push_back(at::rand({24, inputs}, at::kDouble) - 0.5);
    params.push_back(at::rand({24, 6}, at::kDouble) - 0.5);
  }
  Tensors on_mesh;
  for (const at::Tensor& p : params) on_mesh.push_back(whole(p));
  const at::Tensor split = distribute_tensor(x, mesh, {Shard(1)});
  const Tensors state = {whole(h), whole(h)};
  CommDebugMode comm;
  const auto [y, hy, cy] = at::lstm(split, state, on_mesh, false, 2, 0, false, false, false);
  CHECK(comm.total() == 0);
  CHECK(comm.work_share() == Approx(1));
  CHECK(to_string(DTensor(y).placements()) == "S(1)");
  const auto expected = std::get<0>(at::lstm(x, {h, h}, params, false, 2, 0, false, false, false));
  CHECK(difference(y, expected) == std::nullopt);
}

// Parameters split over their rows, and the same values on one device.
struct Parameters {
  Tensors split, plain;

  Parameters(const Shapes& shapes, const DeviceMesh& mesh) {
    for (const std::vector<int64_t>& sizes : shapes) {
      const at::Tensor w = at::rand(sizes, at::kDouble) - 0.5;
      split.push_back(distribute_tensor(w, mesh, {Shard(0)}).requires_grad_());
      plain.push_back(w.clone().requires_grad_());
    }
  }

  void check_gradients() const {
    for (size_t k = 0; k < plain.size(); ++k) {
      CHECK(to_string(DTensor(split[k].grad()).placements()) == "S(0)");
      CHECK(difference(split[k].grad(), plain[k].grad()) == std::nullopt);
    }
  }
};

// Fully sharded: otherwise each step would move its state, as that is smaller than the weights.
TEST_CASE("recurrent networks: split weights are gathered once for all steps of a split batch", "[ops][recurrent]") {
  const DeviceMesh mesh(World::local(4), {4});
  constexpr int64_t kSteps = 28, kLayers = 2, kHidden = 6;
  const bool both_ways = GENERATE(false, true);
  const int64_t directions = both_ways ? 2 : 1;
  const at::Tensor x = at::rand({kSteps, 9, 5}, at::kDouble),
                   h = at::zeros({kLayers * directions, 9, kHidden}, at::kDouble);
  Shapes shapes;
  for (int64_t k = 0; k < kLayers * directions; ++k) {
    const int64_t inputs = k < directions ? 5 : kHidden * directions;
    shapes.insert(shapes.end(), {{4 * kHidden, inputs}, {4 * kHidden, kHidden}, {4 * kHidden}, {4 * kHidden}});
  }
  const Parameters parameters(shapes, mesh);
  const auto run = [&](const at::Tensor& input, const at::Tensor& state, const Tensors& weights) {
    return std::get<0>(at::lstm(input, {state, state}, weights, true, kLayers, 0, true, both_ways, false));
  };
  const at::Tensor batch = distribute_tensor(x, mesh, {Shard(1)}), state = distribute_tensor(h, mesh);
  CommDebugMode comm;
  const at::Tensor y = run(batch, state, parameters.split);
  CHECK(comm.total() == kLayers);
  CHECK(to_string(DTensor(y).placements()) == "S(1)");
  comm.reset();
  y.pow(2).sum().backward();
  CHECK(comm.total() == kLayers);
  const at::Tensor expected = run(x, h, parameters.plain);
  CHECK(difference(y, expected) == std::nullopt);
  expected.pow(2).sum().backward();
  parameters.check_gradients();
}

TEST_CASE("recurrent cells: split weights are gathered once for all steps of a loop", "[ops][recurrent]") {
  const DeviceMesh mesh(World::local(4), {4});
  using Cell = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& h, const Tensors& w)>;
  const std::vector<std::pair<int64_t, Cell>> cells{
      {4,
       [](const auto& x, const auto& h, const auto& w) {
         return std::get<0>(at::lstm_cell(x, {h, h}, w[0], w[1], w[2], w[3]));
       }},
      {3, [](const auto& x, const auto& h, const auto& w) { return at::gru_cell(x, h, w[0], w[1], w[2], w[3]); }},
      {1, [](const auto& x, const auto& h, const auto& w) { return at::rnn_tanh_cell(x, h, w[0], w[1], w[2], w[3]); }},
  };
  for (const auto& [gates, cell] : cells) {
    CAPTURE(gates);
    const at::Tensor x = at::rand({9, 5}, at::kDouble), h = at::zeros({9, 6}, at::kDouble);
    const Parameters parameters({{gates * 6, 5}, {gates * 6, 6}, {gates * 6}, {gates * 6}}, mesh);
    const auto run = [&, cell = cell](const at::Tensor& input, at::Tensor state, const Tensors& weights) {
      for (int step = 0; step < 28; ++step) state = cell(input, state, weights);
      return state;
    };
    const at::Tensor batch = distribute_tensor(x, mesh, {Shard(0)}), state = distribute_tensor(h, mesh, {Shard(0)});
    CommDebugMode comm;
    const at::Tensor y = run(batch, state, parameters.split);
    CHECK(comm.total() == 1);
    CHECK(to_string(DTensor(y).placements()) == "S(0)");
    comm.reset();
    y.pow(2).sum().backward();
    CHECK(comm.total() == 4);  // one per parameter: a part of one is smaller than its gradient
    const at::Tensor expected = run(x, h, parameters.plain);
    CHECK(difference(y, expected) == std::nullopt);
    expected.pow(2).sum().backward();
    parameters.check_gradients();
  }
}

TEST_CASE("recurrent networks: both directions, and a projection", "[ops][recurrent]") {
  Shapes both = {{3, 5, 2}, {2, 5, 3}, {2, 5, 3}};
  for (int direction = 0; direction < 2; ++direction) both.insert(both.end(), {{12, 2}, {12, 3}, {12}, {12}});
  check("bidirectional", both, 2, [](const Tensors& t) {
    return results_of(at::lstm(t[0], {t[1], t[2]}, from(t, 3), true, 1, 0., true, true, false));
  });
  const Shapes projected = {{3, 5, 2}, {1, 5, 2}, {1, 5, 3}, {12, 2}, {12, 2}, {12}, {12}, {2, 3}};
  check("projection", projected, 2, [](const Tensors& t) {
    return results_of(at::lstm(t[0], {t[1], t[2]}, from(t, 3), true, 1, 0., true, false, false));
  });
}

TEST_CASE("recurrent networks: packed sequences", "[ops][recurrent]") {
  const auto sizes = at::tensor(std::vector<int64_t>{4, 3, 3, 1});
  Shapes packed = {{11, 2}, {2, 4, 3}, {2, 4, 3}};
  for (int direction = 0; direction < 2; ++direction) packed.insert(packed.end(), {{12, 2}, {12, 3}, {12}, {12}});
  Tensors values;
  for (const auto& s : packed) values.push_back(at::rand(s, at::kDouble));
  const Fn lstm = [&](const Tensors& t) {
    return results_of(at::lstm(t[0], sizes, {t[1], t[2]}, from(t, 3), true, 1, 0., true, true));
  };
  const Run expected = run(values, lstm, [](size_t, const at::Tensor& t) { return t.clone(); });
  for (const DeviceMesh& mesh : test_meshes()) {
    for (const Placement& p : {Replicate(), Shard(0), Shard(1)}) {
      const Run actual = run(values, lstm, [&](size_t i, const at::Tensor& t) {
        return lay_out(t, mesh, Placements(mesh.ndim(), i == 0 ? p : Replicate()));
      });
      for (size_t k = 0; k < expected.outputs.size(); ++k)
        CHECK(difference(actual.outputs[k], expected.outputs[k]).value_or("") == "");
      for (size_t k = 0; k < expected.grads.size(); ++k)
        CHECK(difference(actual.grads[k], expected.grads[k]).value_or("") == "");
    }
  }
}

// [3 steps, 5 sequences, 2 features], of which these are read.
at::Tensor sequence_lengths() { return at::tensor(std::vector<int64_t>{3, 3, 2, 1, 1}); }

TEST_CASE("packing a split batch, a recurrent network on it, and padding communicate nothing", "[ops][recurrent]") {
  const auto packed = [](bool batch_first, const std::function<Tensors(const at::Tensor&, const at::Tensor&)>& run) {
    return [=](const Tensors& t) {
      const at::Tensor x = batch_first ? t[0].transpose(0, 1) : t[0];
      const auto [data, sizes] = at::_pack_padded_sequence(x, sequence_lengths(), batch_first);
      Tensors results = run(data, sizes);
      const auto [y, n] = at::_pad_packed_sequence(results[0], sizes, batch_first, 0.5, 4);
      CHECK(at::equal(n, sequence_lengths()));
      results[0] = y;
      return results;
    };
  };
  for (const bool batch_first : {false, true}) {
    check("lstm", shapes(2, 4, 2), 2, [=](const Tensors& t) {
      return packed(batch_first, [&](const at::Tensor& data, const at::Tensor& sizes) {
        return results_of(at::lstm(data, sizes, {t[1], t[2]}, from(t, 3), true, 2, 0., true, false));
      })(t);
    });
  }
  Shapes both = {{3, 5, 2}, {2, 5, 3}};
  for (int direction = 0; direction < 2; ++direction) both.insert(both.end(), {{9, 2}, {9, 3}, {9}, {9}});
  check("gru in both directions", both, 1, [=](const Tensors& t) {
    return packed(true, [&](const at::Tensor& data, const at::Tensor& sizes) {
      return results_of(at::gru(data, sizes, t[1], from(t, 2), true, 1, 0., true, true));
    })(t);
  });
}

// Elements behind the end of a sequence are never read.
TEST_CASE("packed sequences whose padding is nan have finite results and gradients", "[ops][recurrent]") {
  const DeviceMesh& mesh = test_meshes()[0];
  at::Tensor values = at::rand({3, 5, 2}, at::kDouble);
  values.select(0, 2).narrow(0, 3, 2).fill_(NAN);
  const auto x = distribute_tensor(values, mesh, {Shard(1)}).requires_grad_();
  const auto h = distribute_tensor(at::zeros({1, 5, 3}, at::kDouble), mesh);
  Tensors params;
  for (const auto& s : Shapes{{3, 2}, {3, 3}}) {
    params.push_back(distribute_tensor(at::rand(s, at::kDouble), mesh).requires_grad_());
  }
  const auto [data, sizes] = at::_pack_padded_sequence(x, sequence_lengths(), false);
  const auto [y, hy] = at::rnn_tanh(data, sizes, h, params, false, 1, 0., true, false);
  (y.sum() + hy.sum()).backward();
  for (const at::Tensor& t : {y, hy, x.grad(), params[0].grad(), params[1].grad()})
    CHECK(full_tensor(t).isfinite().all().item<bool>());
}

TEST_CASE("recurrent networks: errors", "[ops][recurrent]") {
  const auto& mesh = test_meshes()[0];
  const auto whole = [&](std::vector<int64_t> s) { return distribute_tensor(at::rand(s), mesh, {Replicate()}); };
  const auto x = whole({3, 5, 2}), h = whole({1, 5, 3});
  CHECK_THROWS_WITH(at::gru(x, h, {whole({9, 2})}, true, 1, 0., false, false, false),
                    Catch::Contains("elements in params"));
  CHECK_THROWS_WITH(at::gru(x, whole({2, 5, 3}), {}, true, 1, 0., false, false, false),
                    Catch::Contains("the hidden state must be [1, batch"));
}

// CUDA has kernels of its own for these; only their layouts are tested.
TEST_CASE("fused cells split the batch, and gradients of biases are Partial", "[ops][recurrent]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto spec = [&](::dtensor::Shape sizes) { return Spec::get(mesh, {Replicate()}, sizes, at::kFloat); };
  const auto state = spec({6, 3}), gates = spec({6, 12}), bias = spec({12});
  const auto all = [](const OpCall& call) { return RuleRegistry::instance().find(call.op)->per_dim(call, 0); };
  const auto has = [](const std::vector<DimStrategy>& list, const Placements& outputs, const Placements& inputs) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& s) { return s.outputs == outputs && s.inputs == inputs; });
  };
  const Placement r = Replicate(), s = Shard(0), p = Partial();
  CHECK(has(all(OpCall::make("aten::_thnn_fused_lstm_cell", {gates, gates, state, bias, bias})), {s, s, s},
            {s, s, s, r, r}));
  CHECK(has(all(OpCall::make("aten::_thnn_fused_lstm_cell_backward_impl", {state, state, state, state, gates}, {true})),
            {s, s, p}, {s, s, s, s, s}));
  const auto workspace = spec({6, 15});
  CHECK(has(all(OpCall::make("aten::_thnn_fused_gru_cell", {spec({6, 9}), spec({6, 9}), state, spec({9}), spec({9})})),
            {s, s}, {s, s, s, r, r}));
  CHECK(has(all(OpCall::make("aten::_thnn_fused_gru_cell_backward", {state, workspace}, {true})), {s, s, s, p, p},
            {s, s}));
}

}  // namespace
}  // namespace dtensor::testing
