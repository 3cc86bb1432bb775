// Operators on lists whose tensors stay where they are run once per rank, on the lists of local tensors, and do what
// one operator per tensor does.
#include <torch/nn.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/distributed_module.h"
#include "dtensor/dtensor.h"
#include "dtensor/tensor/representation.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr size_t kCount = 12;

const DeviceMesh& shared_mesh() {
  static const auto* const mesh = new DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"});
  return *mesh;
}

// Distributed lists in four layouts, which operators may write to, and their plain values.
struct Lists {
  DeviceMesh mesh = shared_mesh();
  std::vector<Tensors> distributed, plain;
  Tensor number, plain_number = torch::scalar_tensor(0.5, torch::kDouble);

  Lists() {
    torch::manual_seed(5);
    const std::vector<Placements> layouts = {
        {Replicate(), Replicate()}, {Shard(0), Replicate()}, {Replicate(), Shard(1)}, {Shard(0), Shard(1)}};
    distributed.resize(3);
    plain.resize(3);
    for (size_t l = 0; l < 3; ++l) {
      for (size_t i = 0; i < kCount; ++i) {
        plain[l].push_back(torch::rand({5, 3}, torch::kDouble) + 0.5);
        distributed[l].push_back(distribute_tensor(plain[l][i], mesh, layouts[i % layouts.size()]).mul(1));
      }
    }
    number = distribute_tensor(plain_number, mesh, {Replicate(), Replicate()}).mul(1);
  }
  uint64_t hits() const { return strategy_cache(mesh.world()).stats().hits; }
  uint64_t misses() const { return strategy_cache(mesh.world()).stats().misses; }
};

using Call = std::function<Tensors(const std::vector<Tensors>& lists, const Tensor& number)>;

// Those that write return the written list.
std::map<std::string, Call> all_calls() {
  std::map<std::string, Call> calls;
  const auto writes = [&](const std::string& name, const std::function<void(const std::vector<Tensors>&)>& f) {
    calls[name] = [f](const std::vector<Tensors>& l, const Tensor&) { return f(l), l[0]; };
  };
  const std::vector<c10::Scalar> scalars = {1, 0.5, 2., 3, 1, 0.5, 2., 3, 1, 0.5, 2., 3};
  writes("add_.Scalar", [](auto& l) { torch::_foreach_add_(l[0], 2); });
  writes("mul_.Scalar", [](auto& l) { torch::_foreach_mul_(l[0], 0.5); });
  writes("div_.ScalarList", [=](auto& l) { torch::_foreach_div_(l[0], scalars); });
  writes("add_.List", [](auto& l) { torch::_foreach_add_(l[0], l[1], 2); });
  writes("mul_.List", [](auto& l) { torch::_foreach_mul_(l[0], l[1]); });
  writes("div_.Scalar", [](auto& l) { torch::_foreach_div_(l[0], 3); });
  writes("div_.List", [](auto& l) { torch::_foreach_div_(l[0], l[2]); });
  writes("addcdiv_.Scalar", [](auto& l) { torch::_foreach_addcdiv_(l[0], l[1], l[2], 0.5); });
  writes("sub_.List", [](auto& l) { torch::_foreach_sub_(l[0], l[1], 3); });
  writes("lerp_.Scalar", [](auto& l) { torch::_foreach_lerp_(l[0], l[1], 0.25); });
  writes("lerp_.List", [](auto& l) { torch::_foreach_lerp_(l[0], l[1], l[2]); });
  writes("addcmul_.Scalar", [](auto& l) { torch::_foreach_addcmul_(l[0], l[1], l[1], 0.5); });
  writes("addcdiv_.ScalarList", [=](auto& l) { torch::_foreach_addcdiv_(l[0], l[1], l[2], scalars); });
  writes("copy_", [](auto& l) { torch::_foreach_copy_(l[0], l[1]); });
  writes("zero_", [](auto& l) { torch::_foreach_zero_(l[0]); });
  writes("sqrt_", [](auto& l) { torch::_foreach_sqrt_(l[0]); });
  calls["mul_.Tensor"] = [](const auto& l, const Tensor& number) { return torch::_foreach_mul_(l[0], number), l[0]; };
  calls["mul.Tensor"] = [](const auto& l, const Tensor& number) { return torch::_foreach_mul(l[0], number); };
  calls["sqrt"] = [](const auto& l, const Tensor&) { return torch::_foreach_sqrt(l[0]); };
  calls["add.List"] = [](const auto& l, const Tensor&) { return torch::_foreach_add(l[0], l[1], 2); };
  calls["pow.Scalar"] = [](const auto& l, const Tensor&) { return torch::_foreach_pow(l[0], 3); };
  calls["maximum.List"] = [](const auto& l, const Tensor&) { return torch::_foreach_maximum(l[0], l[1]); };
  calls["lerp.Scalar"] = [](const auto& l, const Tensor&) { return torch::_foreach_lerp(l[0], l[1], 0.75); };
  return calls;
}

void check_same(const Tensor& a, const Tensor& b) {
  CHECK(spec_of(a) == spec_of(b));
  const DTensorMeta &x = meta_without_sync(a), &y = meta_without_sync(b);
  CHECK(x.laid_out_by_engine == y.laid_out_by_engine);
  CHECK(x.storage->writes.load() == y.storage->writes.load());
  REQUIRE(x.locals.size() == y.locals.size());
  for (size_t r = 0; r < x.locals.size(); ++r) CHECK(torch::equal(x.locals[r], y.locals[r]));
}

TEST_CASE("foreach operators on lists in several layouts give what single operators give", "[ops][foreach]") {
  for (const auto& [name, call] : all_calls()) {
    INFO(name);
    Lists decided, lists, observed, plain;
    for (int i = 0; i < 2; ++i) call(decided.distributed, decided.number);
    const Tensors whole = call(lists.distributed, lists.number);
    const RedistributeMemoryLimit limited(int64_t{1} << 40);  // such calls take one tensor after the other
    const Tensors single = call(observed.distributed, observed.number);
    const Tensors expected = call(plain.plain, plain.plain_number);
    REQUIRE(whole.size() == kCount);
    REQUIRE(single.size() == kCount);
    for (size_t i = 0; i < kCount; ++i) {
      INFO("tensor " << i);
      check_same(whole[i], single[i]);
      CHECK(torch::equal(full_tensor(whole[i]), expected[i]));
    }
  }
}

TEST_CASE("a foreach operator looks up one decision per layout of its lists", "[ops][foreach]") {
  for (const auto& [name, call] : all_calls()) {
    if (name == "maximum.List" || name == "copy_") continue;  // computed with clamp_min; casts by a kernel of its own
    INFO(name);
    Lists lists;
    for (int i = 0; i < 2; ++i) call(lists.distributed, lists.number);
    const uint64_t hits = lists.hits(), misses = lists.misses();
    call(lists.distributed, lists.number);
    CHECK(lists.misses() == misses);
    // With four layouts, and numbers that are integers or not.
    CHECK(lists.hits() - hits <= 8);
    CHECK(lists.hits() - hits >= 4);
  }
}

TEST_CASE("foreach operators on lists with repeated tensors give what plain ones give", "[ops][foreach]") {
  Lists lists;
  const auto run = [](const Tensors& a, const Tensors& b) {
    torch::_foreach_add_(Tensors{a[0], a[4], a[0]}, Tensors{b[0], b[4], a[4]});  // reads what it wrote
    torch::_foreach_addcmul_(Tensors{a[1], a[2]}, Tensors{a[1], b[2]}, Tensors{a[1], a[2]}, 2);
    torch::_foreach_mul_(Tensors{a[3], a[3], a[7]}, Tensors{a[7], b[3], a[3]});
  };
  for (int i = 0; i < 3; ++i) {
    run(lists.distributed[0], lists.distributed[1]);
    run(lists.plain[0], lists.plain[1]);
    for (size_t k = 0; k < kCount; ++k) CHECK(torch::equal(full_tensor(lists.distributed[0][k]), lists.plain[0][k]));
  }
}

TEST_CASE("a foreach operator reduces a Partial gradient beside gradients that are not", "[ops][foreach]") {
  Lists lists;
  const Tensors &params = lists.distributed[0], &grads = lists.distributed[1];
  for (int i = 0; i < 2; ++i) torch::_foreach_addcmul_(params, grads, grads, 0.5);
  for (int i = 0; i < 2; ++i) torch::_foreach_addcmul_(lists.plain[0], lists.plain[1], lists.plain[1], 0.5);
  Tensors with_partial = grads;
  const Tensor addend = lists.plain[1][0] / 4;
  with_partial[0] = from_local({addend, addend, addend, addend}, lists.mesh, {Partial(), Partial()});
  torch::_foreach_addcmul_(params, with_partial, with_partial, 0.5);
  torch::_foreach_addcmul_(lists.plain[0], lists.plain[1], lists.plain[1], 0.5);
  for (size_t k = 0; k < kCount; ++k) {
    CHECK(spec_of(params[k])->placements() == spec_of(grads[k])->placements());
    CHECK(torch::allclose(full_tensor(params[k]), lists.plain[0][k], 1e-12, 1e-12));
  }
}

TEST_CASE("a foreach operator takes lists over several meshes, and a plain tensor is an error", "[ops][foreach]") {
  Lists lists;
  const DeviceMesh other(lists.mesh.world(), {4}, {"x"});
  const Tensor far = distribute_tensor(torch::ones({8}, torch::kDouble), other, {Shard(0)}).mul(1);
  const Tensors both = {lists.distributed[0][1], far};
  for (int i = 0; i < 3; ++i) torch::_foreach_mul_(both, 2);
  CHECK(torch::equal(full_tensor(both[0]), lists.plain[0][1] * 8));
  CHECK(torch::equal(full_tensor(far), torch::full({8}, 8., torch::kDouble)));
  CHECK_THROWS_WITH(torch::_foreach_add_(Tensors{both[0]}, Tensors{lists.plain[1][1]}),
                    Catch::Contains("is a plain tensor"));
  CHECK_THROWS_WITH(torch::_foreach_add_(both, Tensors{both[0]}), Catch::Contains("2 and 1"));
}

TEST_CASE("a write by a foreach operator reaches copied views and drops cached layouts", "[ops][foreach]") {
  Lists lists;
  const Tensors &x = lists.distributed[0], &plain = lists.plain[0];
  const Tensor slice = x[1].slice(0, 1, 4);  // of a sharded dim: a copy
  for (int i = 0; i < 2; ++i) {
    torch::_foreach_mul_(x, 1);
    torch::_foreach_mul_(Tensors{x[0], slice}, 1);
  }
  CHECK(torch::equal(full_tensor(slice), plain[1].slice(0, 1, 4)));
  CHECK(torch::equal(full_tensor(x[1] + x[2]), plain[1] + plain[2]));  // one of them moves
  torch::_foreach_mul_(x, 2);
  CHECK(torch::equal(full_tensor(x[1] + x[2]), 2 * (plain[1] + plain[2])));
  CHECK(torch::equal(full_tensor(slice), 2 * plain[1].slice(0, 1, 4)));
  torch::_foreach_mul_(Tensors{x[0], slice}, 2);
  CHECK(torch::equal(full_tensor(x[1].slice(0, 1, 4)), 4 * plain[1].slice(0, 1, 4)));
}

TEST_CASE("a foreach operator on parameters has gradients", "[ops][foreach]") {
  Lists lists;
  for (int i = 0; i < 2; ++i) {
    Tensors params, plain;
    for (size_t k = 0; k < kCount; ++k) {
      params.push_back(lists.distributed[0][k].detach().clone().requires_grad_());
      plain.push_back(lists.plain[0][k].clone().requires_grad_());
    }
    const Tensors y = torch::_foreach_mul(params, lists.distributed[1]), z = torch::_foreach_mul(plain, lists.plain[1]);
    for (const Tensors& list : {y, z}) {
      Tensor sum = list[0].pow(2).sum();
      for (size_t k = 1; k < kCount; ++k) sum = sum + list[k].pow(2).sum();
      sum.backward();
    }
    for (size_t k = 0; k < kCount; ++k) {
      CHECK(torch::allclose(full_tensor(params[k].grad()), plain[k].grad(), 1e-12, 1e-12));
    }
  }
}

TEST_CASE("a foreach operator on parameters of a module whose hooks never ran is an error", "[ops][foreach]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto input_fn = [](Tensors& in, const DeviceMesh&) { in[0] = in[0] * 2; };
  const auto bare = distribute_module(torch::nn::Linear(3, 4), mesh, nullptr, nullptr);
  const auto watched = distribute_module(torch::nn::Linear(3, 4), mesh, nullptr, input_fn);
  const torch::NoGradGuard no_grad;
  const Tensor x = distribute_tensor(torch::ones({5, 1, 3}), mesh, {Replicate()});
  for (int i = 0; i < 2; ++i) torch::_foreach_mul(Tensors{x, x}, Tensors{bare->weight, bare->weight});
  CHECK_THROWS_WITH(torch::_foreach_mul(Tensors{x, x}, Tensors{bare->weight, watched->weight}),
                    Catch::Contains("never ran"));
  for (int i = 0; i < 2; ++i) torch::_foreach_mul_(Tensors{watched->weight}, 2);  // as an optimizer does
}

TEST_CASE("a foreach operator that fails leaves the tensor that it could not write as it was", "[ops][foreach]") {
  Lists lists;
  const Tensors x = {lists.distributed[0][0], lists.distributed[0][0].to(torch::kInt)};
  torch::_foreach_mul_(Tensors{x[0]}, 1);
  CHECK_THROWS_AS(torch::_foreach_mul_(x, 0.5), c10::Error);
  CHECK(torch::equal(full_tensor(x[1]), lists.plain[0][0].to(torch::kInt)));
}

}  // namespace
}  // namespace dtensor
