// Writing to views of distributed tensors, and reading them after others wrote: what a plain tensor would do, whether
// or not the view's parts had to move.
#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "dtensor/dtensor_handle.h"
#include "dtensor/extend/representation.h"
#include "dtensor/from_local.h"
#include "dtensor/internal/memory_overlap.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/property.h"

namespace dtensor::testing {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

DeviceMesh mesh_of(int64_t n) { return DeviceMesh(World::local(n), {n}, {"x"}); }

const std::vector<DeviceMesh>& test_meshes() {
  static const std::vector<DeviceMesh> meshes = {mesh_of(2), mesh_of(3),
                                                 DeviceMesh(World::local(4), {2, 2}, {"x", "y"}),
                                                 DeviceMesh(World::local(6), {2, 3}, {"x", "y"})};
  return meshes;
}

bool same(const Tensor& distributed, const Tensor& plain) {
  if (distributed.sizes() != plain.sizes() || distributed.storage_offset() != plain.storage_offset()) return false;
  return torch::allclose(full_tensor(distributed.detach()).resolve_conj(), plain.detach().resolve_conj(), 1e-9, 1e-9,
                         true);
}

Tensor numbers(const std::vector<int64_t>& shape, torch::Dtype dtype = torch::kDouble) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return (torch::arange(1, n + 1, torch::kDouble) / 4).reshape(shape).to(dtype);
}

// The same tensor plain and distributed.
struct Pair {
  Tensor plain, distributed;
};

Pair make(const std::vector<int64_t>& shape, const DeviceMesh& mesh, const Placements& placements,
          torch::Dtype dtype = torch::kDouble) {
  const Tensor t = numbers(shape, dtype);
  return {t.clone(), distribute_tensor(t, mesh, placements)};
}

std::vector<Placements> layouts(const DeviceMesh& mesh, int64_t ndim) {
  std::vector<Placements> all = {{}};
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    std::vector<Placements> longer;
    for (const Placements& p : all) {
      for (int64_t d = -1; d < ndim; ++d) {
        longer.push_back(p);
        longer.back().push_back(d < 0 ? Replicate() : Shard(d));
      }
    }
    all = std::move(longer);
  }
  return all;
}

using Change = std::function<void(const Tensor&)>;
using View = std::function<Tensor(const Tensor&)>;

struct Case {
  const char* name;
  std::vector<int64_t> shape;
  View view;
  Change write;
  torch::Dtype dtype = torch::kDouble;
};

void triple(const Tensor& t) { t.mul_(3); }
void fill(const Tensor& t) { t.fill_(7); }

std::vector<Case> cases() {
  const auto c = torch::kComplexDouble;
  return {
      {"slice", {5, 4}, [](auto& t) { return t.slice(0, 2, 5); }, fill},
      {"slice with steps", {5, 4}, [](auto& t) { return t.slice(0, 1, 5, 2).slice(1, 0, 4, 3); }, triple},
      {"select", {5, 4}, [](auto& t) { return t.select(0, 3); }, [](auto& t) { t.zero_(); }},
      {"one element", {5, 4}, [](auto& t) { return t[3][1]; }, triple},
      {"flattened with steps", {5, 4}, [](auto& t) { return t.view(-1).slice(0, 0, 20, 2); }, triple},
      {"flattened", {5, 4}, [](auto& t) { return t.view(-1); }, [](auto& t) { t.copy_(t.flip(0)); }},
      {"diagonal", {5, 4}, [](auto& t) { return t.diagonal(-1); }, triple},
      {"fill_diagonal_",
       {6, 4},
       [](auto& t) { return t.slice(0, 1, 6); },
       [](auto& t) { Tensor(t).fill_diagonal_(9); }},
      {"chain",
       {5, 4},
       [](auto& t) { return t.slice(0, 1, 4).t().slice(0, 1, 3).unsqueeze(0).select(0, 0).slice(1, 1, 3); },
       triple},
      {"split", {5, 4}, [](auto& t) { return t.split(2)[1]; }, triple},
      {"chunk", {5, 4}, [](auto& t) { return t.chunk(3, 1)[1]; }, triple},
      {"unsafe_chunk", {5, 4}, [](auto& t) { return t.unsafe_chunk(2)[1]; }, triple},
      {"unsafe_split", {5, 4}, [](auto& t) { return t.unsafe_split(2)[2]; }, triple},
      {"unbind", {5, 4}, [](auto& t) { return t.unbind(0)[4]; }, triple},
      {"permute",
       {3, 4, 5},
       [](auto& t) {
         return t.select(0, 1).permute({1, 0}).slice(0, 2, 5);
       },
       triple},
      {"movedim", {3, 4, 5}, [](auto& t) { return t.movedim(0, 2).slice(0, 1).slice(1, 2).slice(2, 1, 2); }, triple},
      {"regrouped",
       {6, 2},
       [](auto& t) {
         return t.view({4, 3}).slice(0, 1, 3);
       },
       triple},
      {"unfold", {6, 4}, [](auto& t) { return t.unfold(0, 3, 1)[1]; }, triple},
      {"element of an expanded view",
       {5, 4},
       [](auto& t) {
         return t.slice(0, 2, 3).expand({3, 4})[1];
       },
       triple},
      {"expanded, filled",
       {5, 1},
       [](auto& t) {
         return t.slice(0, 2, 4).expand({2, 3});
       },
       fill},
      {"nothing", {5, 4}, [](auto& t) { return t.slice(0, 2, 2); }, fill},
      {"squeeze", {1, 5}, [](auto& t) { return t.squeeze(0).slice(0, 1, 3); }, triple},
      {"real", {5, 4}, [](auto& t) { return at::real(t.slice(0, 1, 3)); }, triple, c},
      {"imag", {5, 4}, [](auto& t) { return at::imag(t).slice(0, 1, 3); }, triple, c},
      {"conjugates",
       {5, 4},
       [](auto& t) { return t.conj().slice(0, 1, 3).conj()[0].conj(); },
       [](auto& t) { t.mul_(c10::complex<double>(3, 1)); },
       c},
      {"view_as_real", {6, 2}, [](auto& t) { return at::view_as_real(t).slice(0, 2).select(2, 1); }, triple, c},
      {"view_as_complex",
       {6, 2},
       [](auto& t) { return at::view_as_complex(t).slice(0, 2); },
       [](auto& t) { t.mul_(c10::complex<double>(0, 1)); }},
      {"smaller elements", {5, 4}, [](auto& t) { return t.view(torch::kFloat).slice(0, 2); }, fill},
      {"larger elements", {6}, [](auto& t) { return t.view(torch::kDouble).slice(0, 1); }, fill, torch::kFloat},
      {"other elements", {5, 4}, [](auto& t) { return t.view(torch::kLong).slice(0, 2); }, fill},
      {"as_strided",
       {6, 2},
       [](auto& t) {
         return t.as_strided({3, 2}, {4, 1}, 1);
       },
       triple},
      {"as_strided of a view",
       {6, 2},
       [](auto& t) {
         return t.slice(0, 2).as_strided({3, 2}, {2, 1});
       },
       triple},
  };
}

TEST_CASE("view writes: every view operator writes to its base, and is read anew") {
  for (const Case& c : cases()) {
    for (const DeviceMesh& mesh : test_meshes()) {
      for (const Placements& placements : layouts(mesh, static_cast<int64_t>(c.shape.size()))) {
        INFO(c.name << " of " << to_string(placements) << " on " << mesh.to_string());
        Pair base = make(c.shape, mesh, placements, c.dtype);
        const Pair view = {c.view(base.plain), c.view(base.distributed)};
        const Pair before = {c.view(base.plain), c.view(base.distributed)};
        c.write(view.plain);
        c.write(view.distributed);
        CHECK(same(base.distributed, base.plain));
        CHECK(same(view.distributed, view.plain));
        CHECK(same(before.distributed, before.plain));
        base.plain.mul_(2);
        base.distributed.mul_(2);
        CHECK(same(view.distributed, view.plain));
        if (view.plain.numel() == 0) continue;
        // The write of one is seen by the other, which writes on.
        if (before.plain.is_complex() || !before.plain.is_floating_point() || before.plain.dim() == 0) continue;
        before.plain.select(0, 0).zero_();
        before.distributed.select(0, 0).zero_();
        CHECK(same(view.distributed, view.plain));
        CHECK(same(base.distributed, base.plain));
      }
    }
  }
}

// ------------------------------------------------------------ random programs

std::string text(const Tensor& t) { return c10::str(t.sizes()); }

// A view of a tensor like `t`, and what it is called.
std::pair<std::string, View> draw_view(const Tensor& t) {
  const int64_t n = t.dim();
  if (n == 0) return {"unsqueeze", [](const Tensor& x) { return x.unsqueeze(0); }};
  const int64_t d = draw(0, n - 1), size = t.size(d);
  switch (draw(0, 9)) {
    case 0:
      if (size == 0) break;
      return [&, i = draw(0, size - 1)] {
        return std::pair<std::string, View>{c10::str("select ", d, " ", i),
                                            [=](const Tensor& x) { return x.select(d, i); }};
      }();
    case 1:
    case 2: {
      const int64_t from = draw(0, size), to = draw(from, size), step = draw(1, 2);
      return {c10::str("slice ", d, " ", from, " ", to, " ", step),
              [=](const Tensor& x) { return x.slice(d, from, to, step); }};
    }
    case 3:
      return {c10::str("transpose ", d), [=](const Tensor& x) { return x.transpose(0, d); }};
    case 4:
      return {c10::str("unsqueeze ", d), [=](const Tensor& x) { return x.unsqueeze(d); }};
    case 5:
      return {"squeeze", [](const Tensor& x) { return x.squeeze(); }};
    case 6:
      if (!t.is_contiguous()) break;
      return {"flatten", [](const Tensor& x) { return x.view(-1); }};
    case 7:
      if (!t.is_contiguous() || size % 2 != 0) break;
      return {c10::str("unflatten ", d), [=](const Tensor& x) { return x.unflatten(d, {2, size / 2}); }};
    case 8:
      if (n < 2) break;
      return {"diagonal", [](const Tensor& x) { return x.diagonal(0, 0, 1); }};
    case 9:
      if (size < 3) break;
      return {c10::str("unfold ", d), [=](const Tensor& x) { return x.unfold(d, 2, 2); }};
  }
  return {"alias", [](const Tensor& x) { return x.alias(); }};
}

std::pair<std::string, Change> draw_write() {
  const double v = static_cast<double>(draw(1, 5));
  switch (draw(0, 6)) {
    case 0:
      return {"zero_", [](const Tensor& t) { t.zero_(); }};
    case 1:
      return {"fill_", [=](const Tensor& t) { t.fill_(v); }};
    case 2:
      return {"mul_", [=](const Tensor& t) { t.mul_(v); }};
    case 3:
      return {"add_ of itself", [](const Tensor& t) { t.add_(t.cos()); }};
    case 4:
      return {"clamp_", [=](const Tensor& t) { Tensor(t).clamp_(-v, v); }};
    case 5:
      return {"masked_fill_", [=](const Tensor& t) { t.masked_fill_(t.gt(v), -v); }};
    default:
      return {"copy_", [](const Tensor& t) { t.copy_(t.sin()); }};
  }
}

DeviceMesh draw_mesh() {
  const auto& meshes = test_meshes();
  return meshes[draw(0, static_cast<int64_t>(meshes.size()) - 1)];
}

Placements draw_layout(const DeviceMesh& mesh, int64_t ndim) {
  const auto all = layouts(mesh, ndim);
  return all[draw(0, static_cast<int64_t>(all.size()) - 1)];
}

TEST_CASE("view writes: random views of views and writes to them") {
  CHECK(holds("view writes", 400, [] {
    const DeviceMesh mesh = draw_mesh();
    std::vector<int64_t> shape(draw(1, 3));
    for (auto& s : shape) s = draw(1, 6);
    const Placements placements = draw_layout(mesh, static_cast<int64_t>(shape.size()));
    std::ostringstream program;
    program << "x of " << shape << " as " << to_string(placements) << " on " << mesh.to_string() << "\n";
    std::vector<Pair> live = {make(shape, mesh, placements)};
    for (int64_t step = draw(2, 10); step > 0; --step) {
      const Pair at = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      if (draw(0, 1) == 0) {
        const auto [name, view] = draw_view(at.plain);
        program << name << " of " << text(at.plain) << "\n";
        live.push_back({view(at.plain), view(at.distributed)});
      } else {
        const auto [name, write] = draw_write();
        program << name << " on " << text(at.plain) << "\n";
        write(at.plain);
        write(at.distributed);
        RC_LOG(program.str());
        RC_ASSERT(same(live[0].distributed, live[0].plain));
      }
      const Pair& other = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      program << "read " << text(other.plain) << "\n";
      RC_LOG(program.str());
      RC_ASSERT(same(other.distributed, other.plain));
    }
  }));
}

TEST_CASE("view writes: gradients through random views and writes") {
  CHECK(holds("gradients of view writes", 200, [] {
    const DeviceMesh mesh = draw_mesh();
    std::vector<int64_t> shape(draw(1, 3));
    for (auto& s : shape) s = draw(1, 5);
    const auto ndim = static_cast<int64_t>(shape.size());
    const Placements of_x = draw_layout(mesh, ndim), of_w = draw_layout(mesh, ndim);
    std::ostringstream program;
    program << "x of " << shape << " as " << to_string(of_x) << " w " << to_string(of_w) << " on " << mesh.to_string()
            << "\n";
    Pair x = make(shape, mesh, of_x);
    const Pair w = {numbers(shape).cos(), distribute_tensor(numbers(shape).cos(), mesh, of_w)};
    for (Tensor* t : {&x.plain, &x.distributed}) t->requires_grad_();
    std::vector<Pair> live = {{x.plain * 1.5, x.distributed * 1.5}};
    for (int64_t step = draw(1, 6); step > 0; --step) {
      const Pair at = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      if (draw(0, 1) == 0) {
        const auto [name, view] = draw_view(at.plain);
        program << name << " of " << text(at.plain) << "\n";
        live.push_back({view(at.plain), view(at.distributed)});
      } else {
        const double v = static_cast<double>(draw(1, 3));
        const int64_t kind = draw(0, 2);
        program << "write " << kind << " on " << text(at.plain) << "\n";
        for (const Tensor& t : {at.plain, at.distributed}) {
          if (kind == 0) t.mul_(v);
          if (kind == 1) t.fill_(v);
          if (kind == 2) t.add_(t.clone().sin());
        }
      }
    }
    const Pair last = live.back();
    const auto loss = [](const Tensor& y, const Tensor& w, const Tensor& view) {
      return (y * w).relu().sum() + view.sin().sum();
    };
    loss(live[0].plain, w.plain, last.plain).backward();
    loss(live[0].distributed, w.distributed, last.distributed).backward();
    RC_LOG(program.str());
    RC_ASSERT(same(x.distributed.grad(), x.plain.grad()));
  }));
}

// ------------------------------------------------------------ what it costs

TEST_CASE("view writes: owners write by themselves, and a view is read anew once") {
  const DeviceMesh mesh = mesh_of(4);
  Pair x = make({12}, mesh, {Shard(0)});
  const Pair row = {x.plain[5], x.distributed[5]}, rows = {x.plain.slice(0, 1, 6), x.distributed.slice(0, 1, 6)};
  REQUIRE(spec_of(rows.distributed)->placements() == Placements{Replicate()});
  CommDebugMode comm;
  for (const Pair& v : {row, rows}) {
    v.plain.fill_(3);
    v.distributed.fill_(3);
  }
  CHECK(comm.total() == 0);
  rows.distributed.mul_(1);  // has what it wrote
  CHECK(comm.total() == 0);
  CHECK(row.distributed.item<double>() == 3);  // `rows` was written to since
  CHECK(comm.total() == 1);
  std::ostringstream report;
  report << comm;
  CHECK_THAT(report.str(), Catch::Contains("aten::select.int"));
  row.distributed.exp();
  CHECK(comm.total() == 1);
  comm.reset();
  for (int i = 0; i < 3; ++i) rows.distributed.fill_(i);  // does not read what it overwrites
  CHECK(comm.total() == 0);
  rows.plain.fill_(2);
  CHECK(same(x.distributed, x.plain));
}

// ------------------------------------------------------------ operators that are no ordinary ones

TEST_CASE("view writes: random fills and initialisers") {
  const DeviceMesh mesh = mesh_of(2);
  const auto w = distribute_tensor(torch::zeros({6, 4}), mesh, {Shard(0)});
  {
    torch::NoGradGuard no_grad;
    torch::nn::init::normal_(w.slice(0, 0, 3));
    w[5].uniform_(1, 2);
    w[4].bernoulli_(1.);
  }
  const auto whole = full_tensor(w);
  CHECK(whole.slice(0, 0, 3).ne(0).all().item<bool>());
  CHECK(whole[3].eq(0).all().item<bool>());
  CHECK(whole[4].eq(1).all().item<bool>());
  CHECK(whole[5].ge(1).all().item<bool>());

  torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 4).padding_idx(5));
  table->weight.set_data(distribute_tensor(torch::ones({6, 4}), mesh, {Shard(0)}));
  table->reset_parameters();
  CHECK(full_tensor(table->weight.detach())[5].eq(0).all().item<bool>());
  CHECK(full_tensor(table->weight.detach())[4].ne(0).all().item<bool>());
}

TEST_CASE("view writes: what answers with a number reads views anew") {
  const DeviceMesh mesh = mesh_of(2);
  auto x = distribute_tensor(torch::arange(8, torch::kDouble), mesh, {Shard(0)});
  const auto y = x[0], z = x.slice(0, 2, 4), alike = x.slice(0, 2, 4);
  x += 100;
  CHECK(y.item<double>() == 100);
  CHECK_FALSE(torch::equal(z, distribute_tensor(torch::tensor({2., 3.}, torch::kDouble), mesh, {Replicate()})));
  x.zero_();
  x[3].fill_(1);
  CHECK(torch::multinomial(z, 4, true).eq(1).all().item<bool>());
  CHECK(z.is_set_to(alike));
  CHECK_FALSE(z.is_set_to(x.slice(0, 3, 5)));
  x.fill_(4);
  CHECK(to_local(z)[1].sum().item<double>() == 8);
  x.fill_(5);
  CHECK(DTensor(z).local(1).sum().item<double>() == 10);
  x.fill_(6);
  CHECK(full_tensor(redistribute(z, {Shard(0)})).sum().item<double>() == 12);
}

TEST_CASE("view writes: optimizers, copies and loads change what views show") {
  const DeviceMesh mesh = mesh_of(2);
  auto p = distribute_tensor(torch::ones({6, 2}, torch::kDouble), mesh, {Shard(0)}).requires_grad_();
  const auto row = p.detach()[1];
  torch::optim::SGD sgd({p}, 0.5);
  p.sum().backward();
  sgd.step();
  CHECK(row.sum().item<double>() == 1);
  {
    torch::NoGradGuard no_grad;
    p.copy_(distribute_tensor(numbers({6, 2}), mesh, {Shard(1)}));
    CHECK(same(row, numbers({6, 2})[1]));
    p.uniform_(5, 6);
  }
  CHECK(row.ge(5).all().item<bool>());
}

TEST_CASE("view writes: lists of views of one tensor") {
  const DeviceMesh mesh = mesh_of(2);
  Pair x = make({6, 2}, mesh, {Shard(0)});
  for (const Tensor& t : {x.plain, x.distributed}) {
    at::_foreach_add_({t, t[1], t.slice(0, 0, 3)}, 1);
    at::_foreach_mul_({t[1], t}, at::TensorList{t.slice(0, 1, 3)[0], t});
  }
  CHECK(same(x.distributed, x.plain));
}

TEST_CASE("view writes: memory that is shared without a word in the schema") {
  const DeviceMesh mesh = mesh_of(2);
  const auto a = numbers({3, 3}), b = numbers({2, 2});
  auto out = distribute_tensor(torch::zeros({6, 6}, torch::kDouble), mesh, {Shard(0)});
  torch::kron_out(out, distribute_tensor(a, mesh), distribute_tensor(b, mesh));
  CHECK(same(out, torch::kron(a, b)));

  const auto part = torch::ones({4}, torch::kDouble);
  const auto sum = from_local({part, part}, mesh, {Partial()}).clone();
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 8);  // the sum is remembered
  sum.unsafe_chunk(2)[0].mul_(5.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 24);
  sum.unsafe_split(3)[1].mul_(3.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 28);
  sum.contiguous().mul_(2.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 56);
  at::_unsafe_view(sum, {2, 2}).mul_(2.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 112);
}

TEST_CASE("view writes: views of Partials get addends") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"x", "y"});
  std::vector<Tensor> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(torch::full({i < 2 ? 3 : 2, 4}, i + 1., torch::kDouble));
  for (const Placements& placements : {Placements{Shard(0), Partial()}}) {
    const auto x = from_local(parts, mesh, placements);
    const auto plain = full_tensor(x);
    const auto rows = x.slice(0, 1, 4);
    plain.slice(0, 1, 4).mul_(3);
    rows.mul_(3.);
    CHECK(torch::allclose(full_tensor(x), plain));
    plain[4].zero_();
    x[4].zero_();
    CHECK(torch::allclose(full_tensor(x), plain));
    CHECK(torch::allclose(full_tensor(rows), plain.slice(0, 1, 4)));
  }
}

// What cannot be taken to the base is refused before the view is written.
TEST_CASE("view writes: a refused write leaves view and base as they were") {
  struct Row {
    const char* name;
    std::function<std::pair<Tensor, Tensor>()> make;  // the base, the view
    const char* error;
    bool expanded;  // ATen itself takes only fills
  };
  const DeviceMesh line = mesh_of(3), grid(World::local(4), {2, 2}, {"x", "y"});
  const std::vector<Row> rows = {
      {"regrouped dims of an expanded tensor",
       [&] {
         const Tensor x = distribute_tensor(numbers({2, 4}), line, {Shard(0)}), base = x.expand({3, 2, 4});
         return std::pair(base, base.view({3, 8}));
       },
       "expanded", true},
      {"another dtype in a product",
       [&] {
         std::vector<Tensor> parts;
         for (int i = 0; i < 4; ++i) parts.push_back(numbers({2, 4}));
         const Tensor base = from_local(parts, grid, {Partial(ReduceOp::kProduct), Shard(0)});
         return std::pair(base, base.slice(0, 1, 3).view(torch::kLong));
       },
       "product of another dtype", false},
      {"a chain that ends in an expanded tensor",
       [&] {
         const Tensor x = distribute_tensor(numbers({2, 4}), line, {Shard(0)}), base = x.expand({3, 2, 4});
         return std::pair(base, base.view({3, 8}).slice(1, 1, 6));
       },
       "expanded", true},
  };
  const std::vector<std::pair<const char*, Change>> writes = {{"fill_", fill},
                                                              {"zero_", [](auto& t) { t.zero_(); }},
                                                              {"bernoulli_", [](auto& t) { t.bernoulli_(0.5); }},
                                                              {"random_", [](auto& t) { Tensor(t).random_(3); }},
                                                              {"copy_", [](auto& t) { t.copy_(at::zeros_like(t)); }},
                                                              {"lists", [](auto& t) { at::_foreach_add_({t}, 1); }},
                                                              {"out=", [](auto& t) {
                                                                 Tensor out = t;
                                                                 at::abs_out(out, at::ones_like(t));
                                                               }}};
  for (const Row& row : rows) {
    for (const auto& [name, write] : writes) {
      if (row.expanded && std::string(name) != "fill_" && std::string(name) != "zero_") continue;
      INFO(row.name << ", " << name);
      const auto [base, view] = row.make();
      const Tensor before = full_tensor(base).clone(), seen = full_tensor(view).clone();
      CHECK_THAT(error_text([&, w = write, v = view] { w(v); }), Catch::Contains(row.error));
      CHECK(torch::equal(full_tensor(base), before));
      CHECK(torch::equal(full_tensor(view), seen));
    }
  }
}

TEST_CASE("view writes: what asks for no values reads no stale view") {
  const DeviceMesh mesh = mesh_of(2);
  const Tensor x = distribute_tensor(torch::arange(12).view({6, 2}), mesh, {Shard(0)});
  const Tensor view = x.slice(0, 1, 5);
  x.mul_(2);
  CommDebugMode comm;
  view.is_pinned();
  CHECK(redistribute(view, DTensor(view).placements()).is_same(view));
  CHECK(distribute_tensor(view, mesh, DTensor(view).placements()).is_same(view));
  CHECK(torch::equal(view, view));
  CHECK(comm.total() == 0);
  CHECK(view.sum().item<int64_t>() == 2 * (2 + 9) * 4);
  CHECK(comm.total() > 0);
}

// Some ranks must copy for a view where others need not, by the strides of their parts: what is sent must not depend on
// it, or processes wait for each other.
TEST_CASE("view writes: strides of local parts change no communication") {
  const DeviceMesh mesh = mesh_of(2);
  const auto run = [&](bool strided) {
    std::vector<Tensor> parts;
    for (int i = 0; i < 2; ++i) {
      const Tensor values = numbers({2, 6}) + i;
      parts.push_back(strided ? values.t().contiguous().t() : values.clone());
    }
    const Tensor whole = torch::cat({parts[0], parts[1]});
    const Tensor x = from_local(parts, mesh, {Shard(0)});
    CommDebugMode comm;
    std::vector<int64_t> counts;
    const auto check = [&](const Tensor& t, const Tensor& expected) {
      CHECK(torch::equal(full_tensor(t), expected));
      counts.push_back(comm.total());
    };
    const Tensor view = x.view({24}), rows = view.slice(0, 1, 13), flat = whole.view({24});
    CHECK((peek_meta(view).storage->origin != nullptr) == strided);
    view.mul_(2);
    whole.mul_(2);
    check(x, whole);
    check(rows, flat.slice(0, 1, 13));
    x.add_(1);
    whole.add_(1);
    check(view, flat);
    rows.mul_(3);
    flat.slice(0, 1, 13).mul_(3);
    check(x, whole);
    check(view, flat);
    check(view.as_strided({2, 3}, {6, 2}, 6), whole.as_strided({2, 3}, {6, 2}, 6));
    at::_foreach_mul_({x, view}, 2.);
    whole.mul_(4);
    check(x, whole);
    check(rows, flat.slice(0, 1, 13));
    return counts;
  };
  CHECK(run(false) == run(true));
}

TEST_CASE("view writes: shape changes in place leave a tensor what it is") {
  const DeviceMesh mesh = mesh_of(2);
  for (const Placement& p : {Replicate(), Shard(0), Shard(1)}) {
    INFO(to_string(p));
    Pair x = make({1, 6}, mesh, {p});
    const Pair whole = {x.plain.view(6), x.distributed.view(6)};
    Pair part = {x.plain.slice(1, 1, 3), x.distributed.slice(1, 1, 3)};
    for (Tensor t : {x.plain, x.distributed}) t.squeeze_(0).add_(1);
    CHECK(same(x.distributed, x.plain));
    CHECK(same(whole.distributed, whole.plain));
    for (Tensor t : {part.plain, part.distributed}) t.t_().unsqueeze_(1).transpose_(0, 1).mul_(2);
    CHECK(same(part.distributed, part.plain));
    CHECK(same(x.distributed, x.plain));
    CHECK(same(whole.distributed, whole.plain));
    for (Tensor t : {x.plain, x.distributed}) t.unsqueeze_(0).mul_(2);
    CHECK(same(part.distributed, part.plain));
  }
}

TEST_CASE("view writes: as_strided looks at the memory that one device would have") {
  const DeviceMesh mesh = mesh_of(2);
  const auto t = numbers({6});
  const auto r = distribute_tensor(t, mesh), s = distribute_tensor(t, mesh, {Shard(0)});
  for (const Tensor& x : {r, s}) {
    const auto tail = x.slice(0, 2), plain = t.slice(0, 2);
    CHECK(tail.storage_offset() == 2);
    CHECK(same(tail.as_strided({2}, {1}, 0), plain.as_strided({2}, {1}, 0)));
    CHECK(same(tail.as_strided({2}, {1}), plain.as_strided({2}, {1})));
    CHECK(same(tail.as_strided({4}, {1}, 0), plain.as_strided({4}, {1}, 0)));
    CHECK(same(tail.as_strided({4}, {1}, 2), plain));
  }
  // Columns of rows that are cut lie in no memory of their own.
  const auto column = distribute_tensor(numbers({6, 2}), mesh, {Shard(0)}).select(1, 1);
  CHECK(same(column.as_strided({2}, {4}), numbers({6, 2}).select(1, 1).as_strided({2}, {4})));
  CHECK_THROWS_WITH(column.as_strided({2}, {4}, 0), Catch::Contains("reach beyond the tensor laid out as S(0)"));
}

TEST_CASE("view writes: ranks do not share what they write to") {
  const DeviceMesh mesh = mesh_of(3);
  const auto t = torch::ones({3}, torch::kDouble);
  auto x = from_local({t, t, t}, mesh, {Replicate()});
  x += 1;
  for (const auto& local : to_local(x)) CHECK(torch::equal(local, torch::full({3}, 2, torch::kDouble)));
  auto y = from_local({t.view({3, 1}).t(), t.slice(0, 0, 1).expand({1, 3}), t.view({1, 3})}, mesh, {Replicate()});
  y.mul_(2);
  CHECK(full_tensor(y).sum().item<double>() == 6);
  CHECK(t.sum().item<double>() == 3);
  // Pieces of one tensor stay where they are.
  auto whole = torch::zeros({4, 6}, torch::kDouble);
  from_local(whole.chunk(3, 1), mesh, {Shard(1)}).add_(1);
  CHECK(whole.sum().item<double>() == 24);
}

TEST_CASE("view writes: which parts share elements, for many ranks too") {
  CHECK(holds("overlap of windows on one tensor", 500, [] {
    const Tensor memory = torch::zeros({60});
    std::vector<Tensor> parts;
    for (int64_t n = draw(2, 7); n > 0; --n) {
      const int64_t rows = draw(0, 3), columns = draw(1, 3), step = draw(0, 8);
      parts.push_back(memory.as_strided({rows, columns}, {step, draw(1, 2)}, draw(0, 20)));
    }
    const auto found = which_overlap(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      bool shared = overlaps_itself(parts[i]);
      for (size_t k = 0; k < parts.size(); ++k) shared = shared || (k != i && overlap(parts[i], parts[k]));
      RC_ASSERT(found[i] == shared);
    }
  }));
  const int64_t many = 100000;
  const std::vector<Tensor> pieces = torch::zeros({many}).split(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = which_overlap(pieces);
  CHECK(std::count(found.begin(), found.end(), true) == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // pair by pair it takes minutes
}

TEST_CASE("view writes: gradients of replicas through to_local must agree") {
  const DeviceMesh mesh = mesh_of(2);
  const auto leaf = [&] { return distribute_tensor(torch::ones({3}, torch::kDouble), mesh).requires_grad_(); };
  auto x = leaf();
  CHECK_THROWS_WITH(to_local(x)[0].sum().backward(),
                    Catch::Contains("[to_local] backward") && Catch::Contains("rank 1 was not used"));
  auto parts = to_local(x);
  CHECK_THROWS_WITH((parts[0].sum() + 2 * parts[1].sum()).backward(), Catch::Contains("they differ"));
  parts = to_local(x);
  (parts[0].sum() + parts[1].sum()).backward();
  CHECK(full_tensor(x.grad()).sum().item<double>() == 3);
  auto y = leaf();
  to_local(y, Placements{Partial()})[0].sum().backward();
  CHECK(full_tensor(y.grad()).sum().item<double>() == 3);
  // Of a shard that was not used the gradient is zero.
  auto z = distribute_tensor(torch::ones({3}, torch::kDouble), mesh, {Shard(0)}).requires_grad_();
  to_local(z)[0].sum().backward();
  CHECK(torch::equal(full_tensor(z.grad()), torch::tensor({1., 1., 0.}, torch::kDouble)));
}

}  // namespace
}  // namespace dtensor::testing
