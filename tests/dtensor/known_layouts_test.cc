// What has moved once is known: by views, by the tensors that they are of, and until somebody writes.
#include <torch/nn.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/extend/representation.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

Placements layout(const Tensor& t) { return spec_of(t)->placements(); }

DeviceMesh mesh_of(int64_t ranks, bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(ranks) : World::local(ranks), {ranks}, {"tp"});
}

// A product that is Partial, and what it is.
struct Product {
  Tensor plain, distributed;
};

Product product(const DeviceMesh& mesh, int64_t rows, int64_t columns) {
  torch::manual_seed(2);
  const Tensor a = torch::randn({rows, 8}, torch::kDouble), b = torch::randn({8, columns}, torch::kDouble);
  return {a.mm(b), distribute_tensor(a, mesh, {Shard(1)}).mm(distribute_tensor(b, mesh, {Shard(0)}))};
}

bool close(const Tensor& t, const Tensor& plain) {
  return !spec_of(t)->mesh().world().has_data() || torch::allclose(full_tensor(t), plain, 1e-12, 1e-13);
}

TEST_CASE("known layouts: a tensor and its views are reduced once", "[dtensor][known_layouts]") {
  const bool abstract = GENERATE(false, true);
  const auto [plain, p] = product(mesh_of(4, abstract), 6, 5);
  CommDebugMode comm;
  CHECK(close(p.t().exp(), plain.t().exp()));
  CHECK(comm.total() == 1);
  CHECK(close(p.view({3, 10}).sin(), plain.view({3, 10}).sin()));
  CHECK(close(p.t().slice(0, 1, 4).cos(), plain.t().slice(0, 1, 4).cos()));
  CHECK(close(p.select(1, 2).tanh(), plain.select(1, 2).tanh()));
  CHECK(close(p.unsqueeze(1).expand({6, 3, 5}).exp(), plain.unsqueeze(1).expand({6, 3, 5}).exp()));
  CHECK(close(p.square(), plain.square()));
  CHECK(layout(p.t() * 2) == Placements{Replicate()});
  CHECK(comm.total() == 1);
}

TEST_CASE("known layouts: of many views the whole is reduced, of a small one of much that one",
          "[dtensor][known_layouts]") {
  const bool abstract = GENERATE(false, true);
  const auto [plain, p] = product(mesh_of(4, abstract), 32, 6);
  CommDebugMode comm;
  for (int64_t i = 0; i < 32; ++i) CHECK(close(p[i].exp(), plain[i].exp()));
  CHECK(comm.total() == 1);
  const auto [many, q] = product(mesh_of(4, abstract), 1 << 15, 64);
  comm.reset();
  CHECK(close(q[7].exp(), many[7].exp()));
  CHECK(comm.bytes() < 64 * 8 * 2);
}

TEST_CASE("known layouts: what was written since is reduced anew", "[dtensor][known_layouts]") {
  const auto [plain, p] = product(mesh_of(2), 6, 5);
  CommDebugMode comm;
  p.exp();
  p.t().mul_(2);
  CHECK(close(p.t().exp(), (plain.t() * 2).exp()));
  CHECK(comm.total() == 2);
  p.select(0, 1).zero_();
  Tensor now = plain * 2;
  now.select(0, 1).zero_();
  CHECK(close(p.t().exp(), now.t().exp()));
  CHECK(comm.total() == 3);
}

TEST_CASE("known layouts: views of conjugates, of other strides, and of gathered numbers", "[dtensor][known_layouts]") {
  const DeviceMesh mesh = mesh_of(3);
  torch::manual_seed(3);
  const Tensor parts = torch::randn({3, 4, 5}, torch::kComplexDouble);
  const Tensor p = from_local(parts.unbind(0), mesh, {Partial()});
  const Tensor plain = parts.sum(0);
  CHECK(close((p + 0).exp(), plain.exp()));
  const Tensor q = p + 0;
  q.exp();
  CHECK(close(q.conj().sin(), plain.conj().sin()));
  CHECK(close(q.t().conj().sin(), plain.t().conj().sin()));
  // Parts that do not lie in rows.
  std::vector<Tensor> columns;
  for (const Tensor& part : torch::randn({3, 4, 5}, torch::kDouble).unbind(0)) columns.push_back(part.t());
  const Tensor c = from_local(columns, mesh, {Partial()}) * 1;
  Tensor sum = columns[0] + columns[1] + columns[2];
  CHECK(close(c.exp(), sum.exp()));
  CHECK(close(c.t().sin(), sum.t().sin()));
  CHECK(close(c.slice(0, 1, 3).sin(), sum.slice(0, 1, 3).sin()));
}

TEST_CASE("known layouts: indices are gathered once for all tables", "[dtensor][known_layouts]") {
  const DeviceMesh mesh = mesh_of(4);
  torch::manual_seed(4);
  const Tensor ids = torch::randint(16, {8, 3, 2}), table = torch::randn({16, 5}, torch::kDouble);
  const Tensor spread = distribute_tensor(ids, mesh, {Shard(0)}), rows = distribute_tensor(table, mesh, {Shard(0)});
  CommDebugMode comm;
  std::vector<Tensor> found;
  for (int64_t i = 0; i < 3; ++i) found.push_back(torch::embedding(rows, spread.select(1, i)));
  CAPTURE(comm.to_string());
  CHECK(comm.count(Collective::kAllGather) == 1);
  for (int64_t i = 0; i < 3; ++i) CHECK(close(found[i], torch::embedding(table, ids.select(1, i))));
}

TEST_CASE("known layouts: the inputs of an operator move together", "[dtensor][known_layouts]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor a = torch::arange(24, torch::kDouble).view({4, 6}), b = a * 3 - 1;
  const Tensor x = distribute_tensor(a, mesh, {Shard(0)}), y = distribute_tensor(b, mesh, {Shard(0)});
  CommDebugMode comm;
  CHECK(close(torch::linalg_cross(x.slice(1, 0, 3), y.slice(1, 0, 3), -1),
              torch::linalg_cross(a.slice(1, 0, 3), b.slice(1, 0, 3), -1)));
  comm.reset();
  const auto p = product(mesh, 3, 2), q = product(mesh, 3, 2);
  comm.reset();
  CHECK(close(torch::stack({p.distributed, q.distributed}).exp(), torch::stack({p.plain, q.plain}).exp()));
  CHECK(comm.total() == 1);
  comm.reset();
  CHECK(close(p.distributed / q.distributed, p.plain / q.plain));
  CHECK(comm.total() == 1);
}

TEST_CASE("free layouts: what an operator made follows what is added to it", "[dtensor][free_layouts]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor a = torch::randn({8, 3}, torch::kDouble), index = torch::tensor({1, 0, 5, 5, 2, 7, 1, 1});
  const Tensor x = distribute_tensor(a, mesh, {Shard(0)}), ids = distribute_tensor(index, mesh, {Shard(0)});
  CommDebugMode comm;
  const MeshScope scope(mesh);
  Tensor sum = torch::zeros({8, 3}, torch::kDouble);
  REQUIRE(is_dtensor(sum));
  sum.add_(x);
  CHECK(layout(sum) == Placements{Shard(0)});
  Tensor scattered = torch::zeros({8, 3}, torch::kDouble);
  scattered.index_add_(0, ids, x);
  CHECK(layout(scattered) == Placements{Partial()});
  CHECK(comm.total() == 0);
  CHECK(close(sum, a));
  CHECK(close(scattered, torch::zeros_like(a).index_add(0, index, a)));
}

TEST_CASE("free layouts: what is shared, or was laid out by somebody, stays", "[dtensor][free_layouts]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor a = torch::randn({8, 3}, torch::kDouble);
  const Tensor x = distribute_tensor(a, mesh, {Shard(0)});
  const auto made = [&] { return zeros({8, 3}, mesh, {}, {torch::kDouble}) * 1; };
  Tensor viewed = made(), data = made(), set = made();
  const Tensor view = viewed.t(), handle = data.data(), other = torch::empty({8, 3}, torch::kDouble);
  Tensor holder = made();
  holder.set_data(set);
  for (Tensor* t : {&viewed, &data, &set}) {
    t->add_(x);
    CHECK(layout(*t) == Placements{Replicate()});
    CHECK(close(*t, a));
  }
  CHECK(close(view, a.t()));
  CHECK(close(handle, a));
  CHECK(close(holder, a));
  Tensor laid = zeros({8, 3}, mesh, {}, {torch::kDouble});
  laid.add_(x);
  CHECK(layout(laid) == Placements{Replicate()});
  Tensor parameter = made().detach().clone().requires_grad_();
  {
    const torch::NoGradGuard no_grad;
    parameter.add_(x);
  }
  CHECK(layout(parameter) == Placements{Replicate()});
}

TEST_CASE("free layouts: gradients go through what changed its layout", "[dtensor][free_layouts]") {
  const DeviceMesh mesh = mesh_of(2);
  torch::manual_seed(6);
  Tensor w = torch::randn({3, 3}, torch::kDouble).requires_grad_(), x = torch::randn({4, 3}, torch::kDouble);
  Tensor h = torch::randn({4, 3}, torch::kDouble);
  Tensor dw = distribute_tensor(w.detach(), mesh).requires_grad_();
  const auto cell = [](const Tensor& w, const Tensor& x, const Tensor& h) { return h.mm(w).add_(x.mm(w)).tanh_(); };
  cell(w, x, h).sum().backward();
  const Tensor y = cell(dw, distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(h, mesh));
  CHECK(layout(y) == Placements{Shard(0)});
  y.sum().backward();
  CHECK(close(dw.grad(), w.grad()));
}

}  // namespace
}  // namespace dtensor
