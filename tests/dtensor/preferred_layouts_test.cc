// Preferred layouts: of rows looked up for a split batch, for any first reader, and of constants.
#include <torch/nn.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

struct Lookup {
  DeviceMesh mesh;
  Tensor plain, distributed;  // looked up in a table by rows: [12, 3, 8]
};

Lookup look_up(const World& world) {
  DeviceMesh mesh(world, {4}, {"all"});
  torch::manual_seed(5);
  const Tensor table = torch::randn({100000, 8}, torch::kDouble), ids = torch::randint(100000, {12, 3});
  const auto put = [&](const Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}); };
  return {mesh, torch::embedding(table, ids), torch::embedding(put(table), put(ids))};
}

void check_split(const Tensor& t, const Tensor& plain) {
  CHECK(to_string(spec_of(t)->placements()) == "S(0)");
  CHECK(torch::allclose(full_tensor(t), plain, 1e-12, 1e-12));
}

TEST_CASE("preferred layouts: looked up rows are reduced to the batch sharding", "[dtensor][preferred_layouts]") {
  const Lookup rows = look_up(World::local(4));
  REQUIRE(spec_of(rows.distributed)->has_partial());
  torch::manual_seed(6);
  const Tensor weight = torch::randn({8, 16}, torch::kDouble);
  const Tensor dweight = distribute_tensor(weight, rows.mesh);
  SECTION("by the first operator") { check_split(rows.distributed.exp(), rows.plain.exp()); }
  SECTION("after a sum") { check_split(rows.distributed.sum(1).tanh(), rows.plain.sum(1).tanh()); }
  SECTION("after views") {
    check_split(rows.distributed.flatten(1).unsqueeze(1).square(), rows.plain.flatten(1).unsqueeze(1).square());
  }
  SECTION("for a product, to share its work") {
    CommDebugMode comm;
    check_split(rows.distributed.mean(1).mm(dweight), rows.plain.mean(1).mm(weight));
    CHECK(comm.work_share() == Approx(1));
    CHECK(comm.counts().at("reduce_scatter") == 1);
  }
  SECTION("with the batch in another dim") {
    const Tensor t = rows.distributed.transpose(0, 1).exp();
    CHECK(to_string(spec_of(t)->placements()) == "S(1)");
    CHECK(torch::allclose(full_tensor(t), rows.plain.transpose(0, 1).exp(), 1e-12, 1e-12));
  }
}

struct Columns {
  Tensor plain, distributed, beside,
      distributed_beside;  // looked up in a table by columns; the beside ones have the batch sharding
};

Columns look_up_columns(const DeviceMesh& mesh, int64_t width) {
  torch::manual_seed(7);
  const Tensor table = torch::randn({1000, 16}, torch::kDouble), ids = torch::randint(1000, {512});
  const Tensor beside = torch::randn({512, width}, torch::kDouble);
  const Tensor rows =
      torch::embedding(distribute_tensor(table, mesh, {Shard(1)}), distribute_tensor(ids, mesh, {Shard(0)}));
  REQUIRE(to_string(spec_of(rows)->placements()) == "S(1)");
  return {torch::embedding(table, ids), rows, beside, distribute_tensor(beside, mesh, {Shard(0)})};
}

TEST_CASE("preferred layouts: looked up columns return to the batch sharding with batch inputs",
          "[dtensor][preferred_layouts]") {
  const Columns t = look_up_columns(DeviceMesh(World::local(4), {4}, {"all"}), 16);
  std::vector<Tensor> plain = {t.beside}, distributed = {t.distributed_beside};
  for (int64_t i = 0; i < 4; ++i) {  // moving one sends fewer bytes than moving four
    plain.push_back(t.plain + i);
    distributed.push_back(t.distributed + i);
  }
  CommDebugMode comm;
  check_split(torch::stack(distributed, 1), torch::stack(plain, 1));
  CHECK(comm.counts().at("all_to_all") == 1);
}

TEST_CASE("preferred layouts: a sum over the batch has no preferred layout", "[dtensor][preferred_layouts]") {
  const Columns t = look_up_columns(DeviceMesh(World::local(4), {4}, {"all"}), 8);
  const Tensor product = t.distributed.t().mm(t.distributed_beside);
  check_split(product, t.plain.t().mm(t.beside));  // a part of the columns is multiplied by all of the others
}

TEST_CASE("preferred layouts: rows for a replicated batch stay replicated", "[dtensor][preferred_layouts]") {
  const DeviceMesh mesh(World::local(4), {4}, {"all"});
  const Tensor table = distribute_tensor(torch::randn({100, 8}), mesh, {Shard(0)});
  const Tensor rows = torch::embedding(table, distribute_tensor(torch::randint(100, {12, 3}), mesh));
  CHECK(to_string(spec_of(rows.exp())->placements()) == "R");
}

TEST_CASE("the gradient of a table smaller than its batch is a reduce-scatter", "[dtensor][preferred_layouts]") {
  const auto calls = [](int64_t table_rows) {
    const DeviceMesh mesh(World::abstract(4), {4}, {"all"});
    const Tensor table = ones({table_rows, 64}, mesh, {Shard(0)}, {.requires_grad = true});
    const Tensor ids = zeros({4096}, mesh, {Shard(0)}, {.dtype = torch::kLong});
    const Tensor loss = torch::embedding(table, ids).square().sum();
    CommDebugMode comm;
    loss.backward();
    CHECK(to_string(spec_of(table.grad())->placements()) == "S(0)");
    return comm.counts();
  };
  CHECK(calls(64).count("all_gather") == 0);
  CHECK(calls(64).at("reduce_scatter") == 1);
  CHECK(calls(1 << 20).at("all_gather") == 1);
}

TEST_CASE("preferred layouts: multiplying constants is shared among the ranks", "[dtensor][preferred_layouts]") {
  const bool abstract = GENERATE(false, true);
  const DeviceMesh mesh(abstract ? World::abstract(4) : World::local(4), {4}, {"dp"});
  const Tensor weight = zeros({3, 8}, mesh, {}, {torch::kDouble}).requires_grad_(),
               bias = zeros({8}, mesh, {}, {torch::kDouble}).requires_grad_(),
               columns = zeros({3, 8}, mesh, {Shard(1)}, {torch::kDouble}).requires_grad_(),
               given = zeros({5, 8}, mesh, {}, {torch::kDouble});
  const auto made = [&](int64_t rows) {
    const MeshScope scope(mesh);
    return torch::zeros({rows, 3}, torch::kDouble);
  };
  const auto layout = [](const Tensor& t) { return to_string(spec_of(t)->placements()); };
  CommDebugMode comm;
  const Tensor state = made(8);
  CHECK(layout(state.mm(weight)) == "S(0)");
  CHECK(layout(torch::addmm(bias, state, weight)) == "S(0)");
  CHECK(comm.work_share() == Approx(1));
  CHECK(layout(state.mm(columns)) == "S(1)");
  CHECK(layout(made(1).mm(weight)) == "R");  // too few rows to share
  CHECK(layout(state + 1) == "R");           // not worth sharing
  CHECK(layout((state + 1).mm(weight)) == "R");
  CHECK(layout(given.mm(state)) == "R");  // which may be a weight
  CHECK(layout(given.mm(made(8).requires_grad_())) == "R");
  state.add_(1);
  CHECK(layout(state.mm(weight)) == "R");  // an operator has set its layout
  CHECK(comm.total() == 0);
}

}  // namespace
}  // namespace dtensor
