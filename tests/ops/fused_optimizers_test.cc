// Fused optimizers and gradient scalers on lists of tensors of several layouts and meshes, compared with plain ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

// Three parameters: sharded by rows, with empty parts; sharded by columns on another mesh; and a plain one.
struct Parameters {
  std::vector<DeviceMesh> meshes = {test_meshes()[0], test_meshes()[1]};

  at::Tensor lay(const at::Tensor& t, size_t i, bool gradient) const {
    if (i == 0) return lay_out(t, meshes[0], {gradient ? Partial() : Shard(0)});
    if (i == 1) return lay_out(t, meshes[1], {Replicate(), gradient ? Shard(0) : Shard(1)});
    return t.clone();
  }
  Tensors make(double from) const {
    Tensors result;
    for (const auto& shape : std::vector<std::vector<int64_t>>{{9, 2}, {3, 4}, {5}})
      result.push_back(at::rand(shape, at::kDouble) + from);
    return result;
  }
  Tensors laid_out(const Tensors& all, bool gradient = false) const {
    Tensors result;
    for (size_t i = 0; i < all.size(); ++i) result.push_back(lay(all[i], i, gradient));
    return result;
  }
};

at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

// `lists`: parameters, gradients, states. Calls the operator on plain and on distributed copies; all written lists must
// agree, and keep their layouts.
void check(const std::string& op, const std::vector<Tensors>& lists, std::vector<c10::IValue> numbers, bool steps) {
  const Parameters parameters;
  std::vector<Tensors> plain(lists.size()), distributed;
  for (size_t l = 0; l < lists.size(); ++l) {
    for (const at::Tensor& t : lists[l]) plain[l].push_back(t.clone());
    distributed.push_back(parameters.laid_out(lists[l], /*gradient=*/l == 1));
  }
  const auto call = [&](const std::vector<Tensors>& of) {
    std::vector<c10::IValue> args(of.begin(), of.end());
    if (steps) args.emplace_back(Tensors(3, at::ones({}, at::kFloat) * 3));
    args.insert(args.end(), numbers.begin(), numbers.end());
    call_op(op, args);
  };
  call(plain);
  call(distributed);
  for (size_t l = 0; l < lists.size(); ++l) {
    for (size_t i = 0; i < lists[l].size(); ++i) {
      INFO(op << ", list " << l << ", tensor " << i);
      CHECK(full(distributed[l][i]).allclose(plain[l][i], 1e-12, 1e-12));
      if (l != 1 && i == 0) CHECK(DTensor(distributed[l][i]).placements() == Placements{Shard(0)});
    }
  }
}

TEST_CASE("fused optimizers match ATen on lists over several meshes", "[ops][fused_optimizers]") {
  const Parameters p;
  const Tensors params = p.make(-0.5), grads = p.make(-0.5), first = p.make(0), second = p.make(0), most = p.make(0);
  for (const char* op : {"aten::_fused_adam_", "aten::_fused_adamw_"}) {
    check(op, {params, grads, first, second, {}}, {0.1, 0.9, 0.99, 0.01, 1e-8, false, false}, true);
    check(op, {params, grads, first, second, most}, {0.1, 0.9, 0.99, 0.01, 1e-8, true, true}, true);
    check(std::string(op) + ".tensor_lr", {params, grads, first, second, {}},
          {at::ones({}, at::kDouble) * 0.1, 0.9, 0.99, 0.01, 1e-8, false, false}, true);
  }
  check("aten::_fused_sgd_", {params, grads, first}, {0.01, 0.9, 0.1, 0.2, false, false, false}, false);
  check("aten::_fused_sgd_", {params, grads, {}}, {0.01, 0., 0.1, 0., false, true, true}, false);
  check("aten::_fused_adagrad_", {params, grads, first}, {0.1, 0.01, 0.01, 1e-8, false}, true);
}

// Lists in the layouts of their parameters: one with empty parts, one sharded by columns, one replicated, and again the
// first layout; the steps are numbers, plain ones and one that is distributed.
std::vector<Tensors> fitting_lists(const DeviceMesh& mesh) {
  torch::manual_seed(7);
  std::vector<Tensors> lists(6);
  for (size_t l = 0; l < 5; ++l) {
    for (const Placement& placement :
         {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate()), Placement(Shard(0))})
      lists[l].push_back(distribute_tensor(at::rand({5, 6}, at::kDouble) + 0.1, mesh, {placement}).mul(1));
  }
  for (size_t i = 0; i < 4; ++i) lists[5].push_back(at::ones({}, at::kFloat) * 3);
  lists[5][2] = distribute_tensor(lists[5][2], mesh, {Replicate()});
  return lists;
}

// The arguments before the scale of gradients, by operator. `l`: fitting_lists().
using Arguments = std::vector<c10::IValue>;
std::map<std::string, std::function<Arguments(const std::vector<Tensors>& l)>> fused_calls() {
  std::map<std::string, std::function<Arguments(const std::vector<Tensors>&)>> calls;
  const auto adam = [](const std::vector<Tensors>& l, const c10::IValue& lr, bool amsgrad) -> Arguments {
    return {l[0], l[1], l[2], l[3], amsgrad ? l[4] : Tensors(), l[5], lr, 0.9, 0.99, 0.01, 1e-8, amsgrad, false};
  };
  for (const std::string op : {"aten::_fused_adam_", "aten::_fused_adamw_"}) {
    calls[op] = [=](const auto& l) { return adam(l, 0.1, false); };
    calls[op + ".tensor_lr"] = [=](const auto& l) { return adam(l, at::ones({}, at::kDouble) * 0.1, true); };
  }
  const auto sgd = [](const std::vector<Tensors>& l, const c10::IValue& lr) -> Arguments {
    return {l[0], l[1], l[2], 0.01, 0.9, lr, 0.2, false, false, false};
  };
  calls["aten::_fused_sgd_"] = [=](const auto& l) { return sgd(l, 0.1); };
  calls["aten::_fused_sgd_.tensor_lr"] = [=](const auto& l) { return sgd(l, at::ones({}, at::kDouble) * 0.1); };
  calls["aten::_fused_adagrad_"] = [](const auto& l) -> Arguments {
    return {l[0], l[1], l[2], l[5], 0.1, 0.01, 0.01, 1e-8, false};
  };
  return calls;
}

TEST_CASE("fused optimizers give the same whether something observes them or not", "[ops][fused_optimizers]") {
  const DeviceMesh mesh(World::local(8), {8}, {"dp"});
  for (const auto& [op, arguments] : fused_calls()) {
    for (const bool scales : {false, true}) {
      INFO(op << (scales ? " with a scale" : ""));
      const auto run = [&, &op = op, &arguments = arguments] {
        std::vector<Tensors> lists = fitting_lists(mesh);
        Arguments args = arguments(lists);
        args.push_back(scales ? c10::IValue(at::ones({}, at::kFloat) * 4) : c10::IValue());
        args.push_back(scales ? c10::IValue(at::zeros({}, at::kFloat)) : c10::IValue());
        call_op(op, args);
        return lists;
      };
      const std::vector<Tensors> typed = run();
      const CommDebugMode comm;  // observed calls take the boxed kernel
      const std::vector<Tensors> boxed = run();
      for (size_t l = 0; l < 5; ++l) {
        for (size_t i = 0; i < 4; ++i) {
          INFO("list " << l << ", tensor " << i);
          const DTensorMeta &x = meta_without_sync(typed[l][i]), &y = meta_without_sync(boxed[l][i]);
          CHECK(x.spec == y.spec);
          CHECK(x.storage->writes.load() == y.storage->writes.load());
          for (size_t r = 0; r < x.locals.size(); ++r) CHECK(torch::equal(x.locals[r], y.locals[r]));
        }
      }
    }
  }
}

TEST_CASE("fused optimizers update a parameter without dims, whose step is a plain number", "[ops][fused_optimizers]") {
  const auto value = at::rand({}, at::kDouble), grad = at::rand({}, at::kDouble);
  const auto step = [&](const std::function<at::Tensor(const at::Tensor&)>& lay_out_value) {
    const at::Tensor param = lay_out_value(value.clone()), sum = lay_out_value(at::zeros({}, at::kDouble));
    call_op("aten::_fused_adagrad_", {Tensors{param}, Tensors{lay_out_value(grad)}, Tensors{sum},
                                      Tensors{at::ones({}, at::kFloat)}, 0.1, 0.01, 0.01, 1e-8, false});
    return full(param);
  };
  const auto on_mesh = [](const at::Tensor& t) { return lay_out(t, test_meshes()[0], {Replicate()}); };
  CHECK(step(on_mesh).equal(step([](const at::Tensor& t) { return t; })));
}

TEST_CASE("a fused optimizer that fails counts writes to what it may have updated", "[ops][fused_optimizers]") {
  const DeviceMesh mesh(World::local(8), {8}, {"dp"});
  for (const bool observed : {false, true}) {
    std::vector<Tensors> lists = fitting_lists(mesh);
    const at::Tensor scale = at::ones({}, at::kDouble);  // the kernel reads float32
    std::optional<CommDebugMode> comm;                   // observed calls take the boxed kernel
    if (observed) comm.emplace();
    std::vector<uint64_t> before;
    for (const at::Tensor& t : lists[0]) before.push_back(meta_without_sync(t).storage->writes.load());
    const auto call = [&] {
      call_op("aten::_fused_adamw_", {lists[0], lists[1], lists[2], lists[3], Tensors(), lists[5], 0.1, 0.9, 0.99, 0.01,
                                      1e-8, false, false, scale, c10::IValue()});
    };
    CHECK_THROWS_AS(call(), c10::Error);
    for (size_t i = 0; i < 4; ++i) CHECK(meta_without_sync(lists[0][i]).storage->writes.load() > before[i]);
  }
}

TEST_CASE("fused optimizers copy plain numbers to the devices of the ranks", "[ops][fused_optimizers]") {
  const DeviceMesh mesh(World::local(8), {8}, {"dp"});
  for (const bool observed : {false, true}) {
    const std::vector<Tensors> lists = fitting_lists(mesh);
    std::optional<CommDebugMode> comm;  // observed calls take the boxed kernel
    if (observed) comm.emplace();
    const auto step = [&](const Tensors& steps, const at::Tensor& found) {
      call_op("aten::_fused_adamw_", {lists[0], lists[1], lists[2], lists[3], Tensors(), steps, 0.1, 0.9, 0.99, 0.01,
                                      1e-8, false, false, c10::IValue(), found});
    };
    // From a device without data, the copy is an error.
    const auto options = at::TensorOptions(at::kFloat).device(at::kMeta);
    const Tensors steps(lists[0].size(), at::ones({1}, options));
    CHECK_THROWS_WITH(step(steps, at::zeros({1}, at::kFloat)), Catch::Contains("Cannot copy out of meta tensor"));
    CHECK_THROWS_WITH(step(lists[5], at::zeros({1}, options)), Catch::Contains("Cannot copy out of meta tensor"));
    CHECK_NOTHROW(step(lists[5], at::zeros({1}, at::kFloat)));
  }
}

TEST_CASE("fused optimizers scale gradients, and skip a step with infinities", "[ops][fused_optimizers]") {
  const Parameters p;
  const Tensors params = p.make(-0.5), grads = p.make(-0.5), first = p.make(0), second = p.make(0);
  for (const double found : {0., 1.}) {
    check("aten::_fused_adam_", {params, grads, first, second, {}},
          {0.1, 0.9, 0.99, 0.01, 1e-8, false, false, at::ones({}, at::kFloat) * 4, at::ones({}, at::kFloat) * found},
          true);
  }
}

TEST_CASE("an infinity on one rank is found on all", "[ops][fused_optimizers]") {
  const Parameters p;
  for (const bool bad : {false, true}) {
    Tensors grads = p.make(0);
    if (bad) grads[0][8][1] = std::numeric_limits<double>::infinity();
    Tensors distributed = {distribute_tensor(grads[0], p.meshes[0], {Shard(0)}),
                           distribute_tensor(grads[1], p.meshes[1], {Replicate(), Shard(0)}), grads[2].clone()};
    for (const bool of_mesh : {true, false}) {
      const at::Tensor zero = at::zeros({1}, at::kFloat), half = at::ones({1}, at::kFloat) * 0.5;
      const at::Tensor found = of_mesh ? distribute_tensor(zero, p.meshes[0], {Replicate()}) : zero;
      call_op("aten::_amp_foreach_non_finite_check_and_unscale_", {distributed, found, half});
      CHECK(full(found).item<float>() == (bad ? 1.f : 0.f));
    }
    CHECK(full(distributed[1]).allclose(grads[1] * 0.25));
    CHECK(full(distributed[2]).allclose(grads[2] * 0.25));
  }
}

TEST_CASE("fused optimizers reject invalid arguments before anything is written", "[ops][fused_optimizers]") {
  const auto& mesh = test_meshes()[0];
  const auto lay = [&](std::vector<int64_t> shape, Placement p) {
    return lay_out(at::rand(shape, at::kDouble), mesh, {p});
  };
  const auto sgd = [](const Tensors& params, const Tensors& grads) {
    call_op("aten::_fused_sgd_", {params, grads, Tensors{}, 0., 0., 0.1, 0., false, false, true});
  };
  const at::Tensor w = lay({4, 2}, Shard(0)), before = full_tensor(w).clone();
  CHECK_THROWS_WITH(sgd({w}, {}), !Catch::Contains("INTERNAL ASSERT"));
  CHECK_THROWS_WITH(sgd({w, w}, {w}), Catch::Contains("'grads' lists 1 tensors"));
  CHECK_THROWS_WITH(sgd({w}, {lay({3, 2}, Shard(0))}), Catch::Contains("does not fit its parameter"));
  CHECK_THROWS_WITH(sgd({w}, {at::rand({4, 2}, at::kDouble)}), Catch::Contains("'grads[0]' is a plain tensor"));
  CHECK_THROWS_WITH(sgd({lay({4, 2}, Partial())}, {w}), Catch::Contains("'self[0]' is Partial"));
  CHECK(at::equal(full_tensor(w), before));
}

}  // namespace
}  // namespace dtensor::testing
