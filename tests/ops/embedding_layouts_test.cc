// Embedding tables beyond the seed's rows (embedding_test.cc): every layout, errors, worlds without data.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "ops/embedding/mask_buffer.h"
#include "ops/kernels/cpu/embedding.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Catch::Contains;
using Tensors = std::vector<at::Tensor>;

namespace {

const Placements& placements(const at::Tensor& t) { return meta_for_read(t).spec->placements(); }

at::Tensor ids_in(int64_t rows, at::IntArrayRef shape) { return at::randint(rows, shape, at::kLong); }

}  // namespace

TEST_CASE("the device-independent masked lookup equals the CPU kernel") {
  for (auto dtype : {at::kDouble, at::kBFloat16, at::kLong}) {
    const auto part = at::rand({3, 5}).mul(100).to(dtype);
    for (const auto& ids :
         {ids_in(10, {6, 7}), ids_in(10, {2, 3, 4}).transpose(0, 2), ids_in(10, {}), ids_in(10, {0, 2})}) {
      for (const auto& typed : {ids, ids.to(at::kInt)}) {
        const auto a = masked_embedding(part.t().contiguous().t(), typed, 4, 10),
                   b = cpu::masked_embedding(part, typed, 4, 10);
        CHECK(a.equal(b));
        CHECK(masked_embedding(part.narrow(0, 0, 0), typed, 10, 10)
                  .equal(cpu::masked_embedding(part.narrow(0, 0, 0), typed, 10, 10)));
      }
    }
    CHECK_THROWS_AS(masked_embedding(part, at::tensor(std::vector<int64_t>{10}), 4, 10), c10::IndexError);
    CHECK_THROWS_AS(cpu::masked_embedding(part, at::tensor(std::vector<int64_t>{-1}), 4, 10), c10::IndexError);
  }
}

TEST_CASE("embedding matches ATen in every layout") {
  const auto make = [](size_t i, const std::vector<int64_t>& shape) {
    return i == 0 ? at::rand(shape, at::kDouble) : ids_in(5, shape);
  };
  for (bool scale : {false, true}) {
    for (int64_t padding : {-1, 2}) {
      OpCase c{"embedding",
               [=](auto& t) { return Tensors{at::embedding(t[0], t[1], padding, scale)}; },
               {{5, 3}, {6, 3}},
               make};
      c.silent = [](const std::vector<Placement>& p) {
        return p[0] == Replicate() || (p[0].is_sharded() && p[1] == Replicate());
      };
      check_op(c, 200);
    }
  }
  OpCase strided{"strided", [](auto& t) { return Tensors{at::embedding(t[0], t[1])}; }, {{5, 3}, {6, 3}}, make};
  strided.strided_inputs = true;
  check_op(strided);
  check_op({"one dim of ids", [](auto& t) { return Tensors{at::embedding(t[0], t[1])}; }, {{5, 3}, {7}}, make});
  check_op({"one id", [](auto& t) { return Tensors{at::embedding(t[0], t[1])}; }, {{5, 3}, {}}, make});
  check_op({"no ids", [](auto& t) { return Tensors{at::embedding(t[0], t[1])}; }, {{5, 3}, {0, 2}}, make});
}

TEST_CASE("ids outside the table are errors in every layout") {
  const auto table = at::rand({10, 6});
  for (int64_t bad : {-1, 10, 1000}) {
    const auto ids = at::tensor(std::vector<int64_t>{1, 2, bad, 3});
    for (const Placement& p : {Replicate(), Shard(0), Shard(1)}) {
      for (const Placement& q : {Replicate(), Shard(0)}) {
        CHECK_THROWS_AS(at::embedding(lay_out(table, test_meshes()[0], {p}), lay_out(ids, test_meshes()[0], {q})),
                        c10::IndexError);
        CHECK_THROWS_WITH(at::embedding(lay_out(table, test_meshes()[0], {p}), lay_out(ids, test_meshes()[0], {q})),
                          Contains("index out of range in self"));
      }
    }
  }
}

TEST_CASE("rows and batch on two mesh dims: only the batch's gradient communicates") {
  const DeviceMesh& mesh = test_meshes()[1];
  const auto table = at::rand({10, 6}, at::kDouble), ids = ids_in(10, {8, 3}), seed = at::rand({8, 3, 6}, at::kDouble);
  at::Tensor plain = table.clone().requires_grad_();
  at::embedding(plain, ids).backward(seed);
  at::Tensor weight = lay_out(table, mesh, {Replicate(), Shard(0)}).requires_grad_();
  CommDebugMode comm;
  const auto out = at::embedding(weight, lay_out(ids, mesh, {Shard(0), Replicate()}));
  CHECK(to_string(placements(out)) == "S(0)MaskP(sum, [10, 6], 0)");
  CHECK(comm.total() == 0);
  out.backward(lay_out(seed, mesh, {Shard(0), Replicate()}));
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_reduce", 1}});  // over the first dim, of own rows only
  CHECK(comm.bytes() == 2 * 5 * 6 * 8 / 2);
  CHECK(placements(weight.grad()) == Placements{Replicate(), Shard(0)});
  CHECK(difference(weight.grad(), plain.grad()).value_or("") == "");
}

TEST_CASE("the gradient of a row-wise table is computed by rows, never whole") {
  at::Tensor weight = lay_out(at::rand({10, 6}), test_meshes()[0], {Shard(0)}).requires_grad_();
  DelayGradientReduction as_computed;
  at::embedding(weight, lay_out(ids_in(10, {8}), test_meshes()[0], {Replicate()}))
      .backward(lay_out(at::rand({8, 6}), test_meshes()[0], {Replicate()}));
  CHECK(placements(weight.grad()) == Placements{Shard(0)});
  // A replicated table's gradient is not split into rows.
  at::Tensor whole = lay_out(at::rand({10, 6}), test_meshes()[0], {Replicate()}).requires_grad_();
  at::embedding(whole, lay_out(ids_in(10, {8}), test_meshes()[0], {Replicate()}))
      .backward(lay_out(at::rand({8, 6}), test_meshes()[0], {Replicate()}));
  CHECK(placements(whole.grad()) == Placements{Replicate()});
}

TEST_CASE("a row-wise table in an abstract world: layouts without data, no communication") {
  const DeviceMesh mesh(World::abstract(8), {8});
  const auto meta = [&](std::vector<int64_t> sizes, c10::ScalarType dtype, Placement p) {
    return distribute_tensor(at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta)), mesh, {p});
  };
  at::Tensor weight = meta({50257, 64}, at::kFloat, Shard(0)).detach().requires_grad_();
  const auto ids = meta({4, 16}, at::kLong, Replicate()), seed = meta({4, 16, 64}, at::kFloat, Replicate());
  CommDebugMode comm;
  const auto out = at::embedding(weight, ids);
  CHECK(out.sizes() == at::IntArrayRef({4, 16, 64}));
  out.backward(seed);
  CHECK(comm.total() == 0);
  CHECK(placements(weight.grad()) == Placements{Shard(0)});
}
