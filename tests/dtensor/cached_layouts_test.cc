// Cached layouts: shared with views and with their base, until a write.
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/line_of_ranks.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::line_of_ranks;
using torch::Tensor;

Placements layout(const Tensor& t) { return spec_of(t)->placements(); }

// A Partial product, and its plain value.
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

TEST_CASE("cached layouts: a tensor and its views are reduced once", "[dtensor][cached_layouts]") {
  const bool abstract = GENERATE(false, true);
  const auto [plain, p] = product(line_of_ranks(4, abstract), 6, 5);
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

TEST_CASE("cached layouts: the base is reduced for many views, a small view alone", "[dtensor][cached_layouts]") {
  const bool abstract = GENERATE(false, true);
  const auto [plain, p] = product(line_of_ranks(4, abstract), 32, 6);
  CommDebugMode comm;
  for (int64_t i = 0; i < 32; ++i) CHECK(close(p[i].exp(), plain[i].exp()));
  CHECK(comm.total() == 1);
  const auto [many, q] = product(line_of_ranks(4, abstract), 1 << 15, 64);
  comm.reset();
  CHECK(close(q[7].exp(), many[7].exp()));
  CHECK(comm.bytes() < 64 * 8 * 2);
}

// Attention whose inputs move, of 3 x 2 x 4 x 4: in memory as permute({2, 0, 1, 3}), like its inputs.
Tensor attention(const DeviceMesh& mesh) {
  torch::manual_seed(4);
  const Tensor packed = distribute_tensor(torch::rand({4, 3, 2, 4}, torch::kDouble), mesh, {Shard(0), Replicate()});
  const Tensor q = redistribute(packed, {Shard(0), Partial()}).permute({1, 2, 0, 3}).mul(1);  // no view of `packed`
  return at::scaled_dot_product_attention(q, q, q);
}

// What a rank communicates in a program with a view of it, which needs the whole view and then the whole result.
std::string communication_of(const World& world) {
  CommDebugMode comm;
  const Tensor x = attention(DeviceMesh(world, {2, 2}));
  REQUIRE(comm.total() > 0);
  const Tensor v = x.permute({2, 0, 1, 3}).view({12, 8});
  torch::linalg_qr(v);
  x.cumsum(0);
  x.mul_(2);
  v.cumsum(1);
  torch::linalg_qr(v);
  std::string text;
  for (const CommEvent& e : comm.events())
    text += c10::str(to_string(e.collective), " ", to_string(*e.layout_change), "\n");
  return text;
}

TEST_CASE("parts of a result share memory with parts of its views, whatever their sizes", "[dtensor][cached_layouts]") {
  const std::string text = communication_of(World::fake(4, 0));
  for (int64_t rank = 0; rank < 4; ++rank) {
    INFO("rank " << rank);
    const Tensor x = attention(DeviceMesh(World::fake(4, rank), {2, 2}));
    const Tensor part = meta_for_read(x.permute({2, 0, 1, 3}).view({12, 8})).locals[0];
    CHECK((part.numel() == 0 || part.is_alias_of(meta_for_read(x).locals[0])));
    CHECK(communication_of(World::fake(4, rank)) == text);
  }
  const DeviceMesh mesh(World::local(4), {2, 2});
  const DeviceMesh one(World::local(1), {1, 1});
  CHECK(torch::allclose(full_tensor(attention(mesh)), full_tensor(attention(one)), 1e-12, 1e-13));
}

TEST_CASE("cached layouts: a redistribution is repeated after a write to local tensors, also a failed one",
          "[dtensor][cached_layouts]") {
  const auto [plain, p] = product(line_of_ranks(2), 6, 5);
  const auto write = [p = p] {
    for (const Tensor& part : meta_for_write(p).locals) part.zero_();
  };
  CHECK(close(p.exp(), plain.exp()));
  SECTION("the write succeeded") { write_parts({p}, "test", write); }
  SECTION("the write failed") {
    CHECK_THROWS_WITH(write_parts({p}, "test",
                                  [&] {
                                    write();
                                    throw std::runtime_error("no further");
                                  }),
                      Catch::Contains("no further"));
  }
  CHECK(close(p.exp(), torch::ones_like(plain)));
}

TEST_CASE("cached layouts: a tensor is redistributed again after a write", "[dtensor][cached_layouts]") {
  const auto [plain, p] = product(line_of_ranks(2), 6, 5);
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

TEST_CASE("cached layouts: views that conjugate or have other strides, and views of gathered tensors",
          "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(3);
  torch::manual_seed(3);
  const Tensor parts = torch::randn({3, 4, 5}, torch::kComplexDouble);
  const Tensor p = from_local(parts.unbind(0), mesh, {Partial()});
  const Tensor plain = parts.sum(0);
  CHECK(close((p + 0).exp(), plain.exp()));
  const Tensor q = p + 0;
  q.exp();
  CHECK(close(q.conj().sin(), plain.conj().sin()));
  CHECK(close(q.t().conj().sin(), plain.t().conj().sin()));
  // Parts that are not row-major.
  std::vector<Tensor> columns;
  for (const Tensor& part : torch::randn({3, 4, 5}, torch::kDouble).unbind(0)) columns.push_back(part.t());
  const Tensor c = from_local(columns, mesh, {Partial()}) * 1;
  Tensor sum = columns[0] + columns[1] + columns[2];
  CHECK(close(c.exp(), sum.exp()));
  CHECK(close(c.t().sin(), sum.t().sin()));
  CHECK(close(c.slice(0, 1, 3).sin(), sum.slice(0, 1, 3).sin()));
}

TEST_CASE("cached layouts: indices are gathered once for all tables", "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4);
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

TEST_CASE("cached layouts: the inputs of an operator move together", "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4);
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

// Matrices with sharded dims, and an operator that needs them whole.
Tensor matrices(Shape sizes) {
  torch::manual_seed(5);
  return torch::randn(sizes, torch::kDouble) / 4 + torch::eye(sizes.back(), torch::kDouble);
}

// Number of collectives of inverse(), with the result compared to `plain`.
int64_t moves(const std::function<Tensor()>& make, const Tensor& plain) {
  CommDebugMode comm;
  const Tensor made = make();
  const int64_t total = comm.total();
  CHECK(close(made, plain));
  return total;
}

int64_t moves_for_inverse(const Tensor& t, const Tensor& plain) {
  return moves([&] { return std::get<0>(torch::linalg_inv_ex(t)); }, plain.inverse());
}

TEST_CASE("cached layouts: a redistribution to another dim serves the tensor and its views",
          "[dtensor][cached_layouts]") {
  const bool abstract = GENERATE(false, true);
  const int64_t ranks = GENERATE(3, 4);
  Tensor plain = matrices({5, 6, 6});
  const Tensor x = distribute_tensor(plain, line_of_ranks(ranks, abstract), {Shard(1)});
  CHECK(moves_for_inverse(x, plain) == 1);
  CHECK(layout(x) == Placements{Shard(1)});
  CHECK(moves_for_inverse(x.transpose(1, 2), plain.transpose(1, 2)) == 0);
  CHECK(moves_for_inverse(x.unsqueeze(1).expand({5, 2, 6, 6}), plain.unsqueeze(1).expand({5, 2, 6, 6})) == 0);
  CHECK(moves([&] { return x.matrix_exp(); }, plain.matrix_exp()) == 0);
  // Each rank gets other ones of the matrices.
  CHECK(moves_for_inverse(x.slice(0, 1, 5), plain.slice(0, 1, 5)) == 1);
  x.mul_(2);
  plain = plain * 2;
  CHECK(moves_for_inverse(x, plain) == 1);
}

TEST_CASE("cached layouts: for views with the same redistribution, the base is moved once",
          "[dtensor][cached_layouts]") {
  const bool abstract = GENERATE(false, true);
  const Tensor plain = matrices({5, 3, 6, 6});
  const Tensor x = distribute_tensor(plain, line_of_ranks(4, abstract), {Shard(2)});
  int64_t total = 0;
  for (int64_t i = 0; i < 3; ++i) total += moves_for_inverse(x.select(1, i), plain.select(1, i));
  CHECK(total == 1);
  CHECK(moves_for_inverse(x.slice(1, 1, 3).mT(), plain.slice(1, 1, 3).mT()) == 0);
  CHECK(moves_for_inverse(x.slice(1, 0, 3, 2).transpose(0, 1), plain.slice(1, 0, 3, 2).transpose(0, 1)) == 0);
}

TEST_CASE("cached layouts: the base of several arguments of one operator moves once", "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4);
  const Tensor rows = torch::randn({8, 64, 512}, torch::kDouble), other = torch::randn({8, 512, 64}, torch::kDouble);
  const Tensor x = distribute_tensor(rows, mesh, {Shard(1)}), y = distribute_tensor(other, mesh, {Shard(2)});
  const Tensor z = distribute_tensor(rows, mesh, {Shard(1)});
  CommDebugMode comm;
  const Tensor apart = x.bmm(y);
  const int64_t two = comm.bytes();
  comm.reset();
  const Tensor square = z.bmm(z.transpose(1, 2));
  CHECK(comm.bytes() == two / 2);
  CHECK(comm.total() == 1);
  CHECK(close(square, rows.bmm(rows.transpose(1, 2))));
  CHECK(close(apart, rows.bmm(other)));
}

TEST_CASE("mutable layouts: an operator's result takes the layout of an added tensor", "[dtensor][mutable_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4);
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

TEST_CASE("mutable layouts: aliased tensors and those with a layout of the user keep it",
          "[dtensor][mutable_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4);
  const Tensor a = torch::randn({8, 3}, torch::kDouble);
  const Tensor x = distribute_tensor(a, mesh, {Shard(0)});
  const auto made = [&] { return zeros({8, 3}, mesh, {}, {torch::kDouble}) * 1; };
  Tensor data = made(), set = made();
  const Tensor handle = data.data(), other = torch::empty({8, 3}, torch::kDouble);
  Tensor holder = made();
  holder.set_data(set);
  for (Tensor* t : {&data, &set}) {
    t->add_(x);
    CHECK(layout(*t) == Placements{Replicate()});
    CHECK(close(*t, a));
  }
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

TEST_CASE("mutable layouts: gradients flow through a tensor that changed its layout", "[dtensor][mutable_layouts]") {
  const DeviceMesh mesh = line_of_ranks(2);
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

TEST_CASE("cached layouts: layouts cached before a tensor has views are visible to later views",
          "[dtensor][cached_layouts]") {
  const bool abstract = GENERATE(false, true);
  const auto [plain, p] = product(line_of_ranks(4, abstract), 8, 6);
  CommDebugMode comm;
  CHECK(close(p.exp(), plain.exp()));
  const int64_t whole = comm.total();
  p.mul_(2);  // the cache is outdated, and views follow
  for (int64_t i = 0; i < 8; ++i) CHECK(close(p[i].exp(), (plain[i] * 2).exp()));
  CHECK(comm.total() == whole + 1);
}

TEST_CASE("cached layouts: a write releases the cached layouts", "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(3);
  const Tensor x = distribute_tensor(torch::randn({12, 4}, torch::kDouble), mesh, {Shard(0)}) * 1;
  MemoryMeter& memory = mesh.world().memory();
  int64_t after_two = 0;
  for (int round = 0; round < 8; ++round) {
    x.mul_(1.5);
    x.roll({1}, {0}), x.roll({-1}, {0});  // margins
    x.slice(0, 0, 4).matrix_exp();        // moved as a whole
    const auto& cache = meta_without_sync(x).storage->cached->contents;
    REQUIRE(cache);
    CHECK(cache->entries.size() <= 5);
    if (round == 1) after_two = memory.live_bytes();
    if (round > 1) CHECK(memory.live_bytes() == after_two);
  }
}

TEST_CASE("cached layouts: cached parts are released by a write", "[dtensor][cached_layouts]") {
  const DeviceMesh mesh = line_of_ranks(4, /*abstract=*/true);
  MemoryMeter& memory = mesh.world().memory();
  const auto p = product(mesh, 64, 32).distributed;
  const int64_t before = memory.live_bytes();
  SECTION("to the tensor") {
    p.exp();
    CHECK(memory.live_bytes() > before);
    p.mul_(2);
  }
  SECTION("to a view") {
    p.exp();
    p.t().mul_(2);
  }
  SECTION("to a copied view") {
    const Tensor x = zeros({8, 16, 16}, mesh, {Shard(1)}, {.dtype = torch::kDouble}) * 1;
    const int64_t with_x = memory.live_bytes();
    x.matrix_exp();
    CHECK(memory.live_bytes() > with_x);
    x.slice(1, 3, 9).add_(1);
    CHECK(memory.live_bytes() == with_x);
  }
  CHECK(memory.live_bytes() == before);
}

}  // namespace
}  // namespace dtensor
