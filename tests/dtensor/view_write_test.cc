// Writing to views of distributed tensors: same result as with plain tensors, whether or not the view's parts had to
// move.
#include <torch/autograd.h>
#include <torch/nn.h>

#include <functional>

#include "dtensor/from_local.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/error_text.h"

namespace dtensor::testing {
namespace {

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

TEST_CASE("view writes: every view operator writes to its base, and is read again") {
  for (const Case& c : cases()) {
    for (const DeviceMesh& mesh : view_meshes()) {
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
        // The write to one is visible in the other, which is written in turn.
        if (before.plain.is_complex() || !before.plain.is_floating_point() || before.plain.dim() == 0) continue;
        before.plain.select(0, 0).zero_();
        before.distributed.select(0, 0).zero_();
        CHECK(same(view.distributed, view.plain));
        CHECK(same(base.distributed, base.plain));
      }
    }
  }
}

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

TEST_CASE("view writes: lists of views of one tensor") {
  const DeviceMesh mesh = mesh_of(2);
  Pair x = make({6, 2}, mesh, {Shard(0)});
  for (const Tensor& t : {x.plain, x.distributed}) {
    at::_foreach_add_({t, t[1], t.slice(0, 0, 3)}, 1);
    at::_foreach_mul_({t[1], t}, at::TensorList{t.slice(0, 1, 3)[0], t});
  }
  CHECK(same(x.distributed, x.plain));
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

// A write that cannot be written back to the base is rejected before the view changes.
TEST_CASE("view writes: a rejected write leaves view and base unchanged") {
  struct Row {
    const char* name;
    std::function<std::pair<Tensor, Tensor>()> make;  // the base, the view
    const char* error;
    bool expanded;  // ATen itself supports only fills
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

TEST_CASE("view writes: in-place shape changes keep the tensor valid") {
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

// The bytes next to the written ones belong to the sum, not to one of the addends.
TEST_CASE("view writes: writing some bytes of the elements of a Partial") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const auto addend = [](double value) { return torch::full({2, 2}, value, torch::kDouble); };
  const std::vector<std::function<void(torch::Tensor&)>> writes = {
      [](torch::Tensor& bytes) { bytes.fill_diagonal_(7); },
      [](torch::Tensor& bytes) { bytes.slice(1, 0, 4, 2).fill_(-1); },
      [](torch::Tensor& bytes) { bytes.slice(0, 1, 2).mul_(3); }};
  for (const auto& write : writes) {
    auto whole = addend(1);
    auto sum = from_local({addend(0.75), addend(0.25)}, mesh, {Partial()}).clone();
    auto expected = whole.view(torch::kInt), bytes = sum.view(torch::kInt);
    write(expected);
    write(bytes);
    CHECK(torch::equal(full_tensor(sum), whole));
    CHECK(torch::equal(full_tensor(bytes), expected));
  }
}

}  // namespace
}  // namespace dtensor::testing
