#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rot90.h>
#include <ATen/ops/split_with_sizes_copy.h>
#include <ATen/ops/squeeze_copy.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/view_copy.h>

#include "comm/scope.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

namespace {

using Fn = std::function<Tensors(const Tensors&)>;

template <typename F>
Fn one(F f) {
  return [f](const Tensors& t) { return Tensors{f(t[0])}; };
}

const std::vector<ReduceOp> kOtherPartials = {ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};

void check_all(const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases) check_op(c);
}

TEST_CASE("view and reshape match ATen in every layout") {
  const struct {
    std::vector<int64_t> from, to;
  } rows[] = {
      {{4, 6}, {24}},
      {{24}, {4, 6}},
      {{5, 6}, {30}},
      {{30}, {5, 6}},
      {{4, 3, 6}, {12, 6}},
      {{12, 6}, {4, 3, 6}},
      {{2, 3, 8}, {2, 3, 4, 2}},
      {{2, 3, 4, 2}, {2, 3, 8}},
      {{4, 6}, {6, 4}},
      {{2, 6}, {2, -1, 3}},
      {{6}, {1, 6, 1}},
      {{1, 6, 1}, {6}},
      {{1}, {}},
      {{}, {1, 1}},
      {{0, 3}, {3, 0, 2}},
      {{3, 1}, {3}},
      {{7, 2}, {14}},
  };
  for (const auto& row : rows) {
    std::ostringstream name;
    name << "view " << row.from << " as " << row.to;
    check_op({.name = name.str(),
              .fn = one([&](auto& x) { return x.view(row.to); }),
              .shapes = {row.from},
              .strided_inputs = true,
              .more_partials = kOtherPartials});
  }
  check_all({
      {.name = "reshape of a transposed tensor",
       .fn = one([](auto& x) { return x.t().reshape({12}); }),
       .shapes = {{3, 4}}},
      {.name = "flatten", .fn = one([](auto& x) { return x.flatten(1); }), .shapes = {{3, 4, 2}}},
      {.name = "unflatten",
       .fn = one([](auto& x) {
         return x.unflatten(0, {4, 2});
       }),
       .shapes = {{8, 3}}},
      {.name = "view_copy",
       .fn = one([](auto& x) {
         return at::view_copy(x, {6, 2});
       }),
       .shapes = {{4, 3}}},
      {.name = "view as another dtype",
       .fn = one([](auto& x) { return x.view(at::kLong).view(at::kInt); }),
       .shapes = {{4, 3}},
       .grad = {false},
       .partial_inputs = false,
       .silent = [](const std::vector<Placement>& p) { return p[0] == Shard(0) || p[0] == Shard(1); }},
      {.name = "a copy as another dtype",
       .fn = one([](auto& x) { return at::view_copy(x, at::kInt); }),
       .shapes = {{4, 3}},
       .grad = {false},
       .partial_inputs = false,
       .silent = [](const std::vector<Placement>& p) { return p[0].is_sharded(); }},
      {.name = "view as larger elements",
       .fn = one([](auto& x) { return x.view(at::kLong); }),
       .shapes = {{2, 48}},
       .make = [](size_t, const std::vector<int64_t>& s) { return at::rand(s).mul(1e6).to(at::kShort); },
       .grad = {false},
       .partial_inputs = false,
       .silent = [](const std::vector<Placement>& p) { return p[0].is_sharded(); }},
  });
}

TEST_CASE("squeeze, unsqueeze, permute and the like match ATen in every layout") {
  std::vector<OpCase> cases = {
      {.name = "permute",
       .fn = one([](auto& x) {
         return x.permute({2, 0, -2});
       }),
       .shapes = {{3, 4, 5}}},
      {.name = "transpose", .fn = one([](auto& x) { return x.transpose(0, -1); }), .shapes = {{3, 4, 5}}},
      {.name = "transpose, no dims", .fn = one([](auto& x) { return x.transpose(0, -1); }), .shapes = {{}}},
      {.name = "t", .fn = one([](auto& x) { return x.t(); }), .shapes = {{3, 5}}},
      {.name = "t of a vector", .fn = one([](auto& x) { return x.t(); }), .shapes = {{5}}},
      {.name = "movedim", .fn = one([](auto& x) { return x.movedim(0, 2); }), .shapes = {{3, 4, 5}}},
      {.name = "mT", .fn = one([](auto& x) { return x.mT(); }), .shapes = {{3, 4, 5}}},
      {.name = "numpy_T", .fn = one([](auto& x) { return x.numpy_T(); }), .shapes = {{3, 4, 5}}},
      {.name = "squeeze", .fn = one([](auto& x) { return x.squeeze(); }), .shapes = {{1, 4, 1, 3}}},
      {.name = "squeeze where parts have one row", .fn = one([](auto& x) { return x.squeeze(); }), .shapes = {{3, 4}}},
      {.name = "squeeze.dim", .fn = one([](auto& x) { return x.squeeze(-2); }), .shapes = {{1, 4, 1, 3}}},
      {.name = "squeeze.dim of no size 1", .fn = one([](auto& x) { return x.squeeze(0); }), .shapes = {{4, 2}}},
      {.name = "squeeze.dims",
       .fn = one([](auto& x) {
         return x.squeeze(c10::IntArrayRef{0, 1, 2});
       }),
       .shapes = {{1, 4, 1, 3}}},
      {.name = "squeeze_copy", .fn = one([](auto& x) { return at::squeeze_copy(x); }), .shapes = {{1, 4}}},
      {.name = "unsqueeze", .fn = one([](auto& x) { return x.unsqueeze(1).unsqueeze(-1); }), .shapes = {{4, 3}}},
      {.name = "expand",
       .fn = one([](auto& x) {
         return x.expand({2, 4, 5, -1});
       }),
       .shapes = {{4, 1, 3}}},
      {.name = "expand of a scalar",
       .fn = one([](auto& x) {
         return x.expand({2, 3});
       }),
       .shapes = {{}}},
      {.name = "expand to size 1",
       .fn = one([](auto& x) {
         return x.expand({1, 1, 4});
       }),
       .shapes = {{1, 4}}},
      {.name = "expand to nothing",
       .fn = one([](auto& x) {
         return x.expand({0, 4});
       }),
       .shapes = {{1, 4}}},
      {.name = "repeat",
       .fn = one([](auto& x) {
         return x.repeat({2, 1, 3});
       }),
       .shapes = {{4, 2}}},
      {.name = "tile", .fn = one([](auto& x) { return x.tile({2}); }), .shapes = {{4, 2}}},
      {.name = "repeat_interleave", .fn = one([](auto& x) { return x.repeat_interleave(3, 1); }), .shapes = {{4, 2}}},
      {.name = "diagonal", .fn = one([](auto& x) { return x.diagonal(1, 0, 2); }), .shapes = {{4, 3, 5}}},
      {.name = "diag_embed", .fn = one([](auto& x) { return at::diag_embed(x, 0, 0, 2); }), .shapes = {{4, 3}}},
      {.name = "unfold", .fn = one([](auto& x) { return x.unfold(1, 3, 2); }), .shapes = {{4, 7}}},
      {.name = "flip",
       .fn = one([](auto& x) {
         return x.flip({0, 2});
       }),
       .shapes = {{3, 4, 2}}},
      {.name = "roll", .fn = one([](auto& x) { return x.roll({2}, {1}); }), .shapes = {{3, 5}}},
      {.name = "roll through all dims", .fn = one([](auto& x) { return x.roll({2}); }), .shapes = {{3, 5}}},
      {.name = "rot90",
       .fn = one([](auto& x) {
         return at::rot90(x, 1, {0, 1});
       }),
       .shapes = {{3, 5, 4}}},
      {.name = "constant_pad_nd of zeros",
       .fn = one([](auto& x) {
         return at::constant_pad_nd(x, {1, 2, 0, 0}, 0);
       }),
       .shapes = {{3, 4, 2}}},
      {.name = "constant_pad_nd cuts",
       .fn = one([](auto& x) {
         return at::constant_pad_nd(x, {-1, 0}, 0);
       }),
       .shapes = {{3, 4}}},
  };
  for (OpCase& c : cases) c.more_partials = kOtherPartials;
  check_all(cases);
  check_all({
      {.name = "constant_pad_nd",
       .fn = one([](auto& x) {
         return at::constant_pad_nd(x, {1, 2}, 3);
       }),
       .shapes = {{3, 4}}},
      {.name = "view_as_complex",
       .fn = one([](auto& x) { return at::view_as_real(at::view_as_complex(x)); }),
       .shapes = {{5, 2}}},
  });
}

TEST_CASE("slices, splits and other parts of dims match ATen in every layout") {
  std::vector<OpCase> cases = {
      {.name = "select", .fn = one([](auto& x) { return x.select(1, -2); }), .shapes = {{4, 5, 3}}},
      {.name = "slice", .fn = one([](auto& x) { return x.slice(0, 1, 7, 2); }), .shapes = {{8, 3}}},
      {.name = "slice of all", .fn = one([](auto& x) { return x.slice(0, -8, 100); }), .shapes = {{5, 3}}},
      {.name = "slice of nothing", .fn = one([](auto& x) { return x.slice(0, 3, 2); }), .shapes = {{5, 3}}},
      {.name = "narrow", .fn = one([](auto& x) { return x.narrow(-1, 2, 3); }), .shapes = {{4, 5}}},
      {.name = "split", .fn = [](const Tensors& t) { return t[0].split(2, 0); }, .shapes = {{5, 4}}},
      {.name = "split_with_sizes",
       .fn =
           [](const Tensors& t) {
             return t[0].split_with_sizes({1, 0, 4}, 1);
           },
       .shapes = {{3, 5}}},
      {.name = "split_with_sizes_copy",
       .fn =
           [](const Tensors& t) {
             return at::split_with_sizes_copy(t[0], {1, 4}, 1);
           },
       .shapes = {{3, 5}}},
      {.name = "chunk", .fn = [](const Tensors& t) { return t[0].chunk(3, -1); }, .shapes = {{4, 6}}},
      {.name = "one of the chunks",
       .fn = [](const Tensors& t) { return Tensors{t[0].chunk(3, -1)[1]}; },
       .shapes = {{4, 6}}},
      {.name = "unbind", .fn = [](const Tensors& t) { return t[0].unbind(1); }, .shapes = {{4, 3}}},
      {.name = "tensor_split", .fn = [](const Tensors& t) { return t[0].tensor_split(3, 0); }, .shapes = {{5, 2}}},
  };
  for (OpCase& c : cases) c.more_partials = kOtherPartials;
  for (int64_t diagonal : {-3, 0, 2}) {
    cases.push_back({.name = "tril",
                     .fn = one([=](auto& x) { return x.tril(diagonal); }),
                     .shapes = {{2, 5, 7}},
                     .strided_inputs = true,
                     .more_partials = kOtherPartials});
    cases.push_back({.name = "triu",
                     .fn = one([=](auto& x) { return x.triu(diagonal); }),
                     .shapes = {{7, 5}},
                     .more_partials = kOtherPartials});
    cases.push_back(
        {.name = "tril_", .fn = one([=](auto& x) { return x.mul(2).tril_(diagonal); }), .shapes = {{5, 4}}});
  }
  check_all(cases);
}

TEST_CASE("cat and stack match ATen in every layout") {
  check_all({
      {.name = "cat",
       .fn =
           [](auto& t) {
             return Tensors{at::cat({t[0], t[1]}, 0)};
           },
       .shapes = {{4, 5}, {3, 5}},
       .more_partials = {ReduceOp::kMax}},
      {.name = "cat, last dim",
       .fn =
           [](auto& t) {
             return Tensors{at::cat({t[0], t[1], t[0]}, -1)};
           },
       .shapes = {{3, 2}, {3, 4}}},
      {.name = "cat with an empty list",
       .fn =
           [](auto& t) {
             return Tensors{at::cat({t[0], t[1]}, 1)};
           },
       .shapes = {{4, 3}, {0}}},
      {.name = "cat with an empty part",
       .fn =
           [](auto& t) {
             return Tensors{at::cat({t[0], t[1]}, 1)};
           },
       .shapes = {{2, 0}, {2, 3}}},
      {.name = "stack",
       .fn =
           [](auto& t) {
             return Tensors{at::stack({t[0], t[1]}, 1)};
           },
       .shapes = {{4, 3}, {4, 3}},
       .more_partials = {ReduceOp::kMax}},
  });
}

bool is_shard(const std::vector<Placement>& p, int64_t dim) { return p[0] == Shard(dim); }

TEST_CASE("a transformer's reshapes of its activations cost nothing") {
  check_all({
      // 4 and 2 and 3 ranks: 12 heads are divisible by all.
      {.name = "heads apart and together",
       .fn = one([](auto& x) {
         return x.view({2, 3, 12, 2}).transpose(1, 2).contiguous().transpose(1, 2).reshape({2, 3, 24});
       }),
       .shapes = {{2, 3, 24}},
       .silent = [](auto& p) { return is_shard(p, 2) || is_shard(p, 0); }},
      {.name = "batch and time as one",
       .fn = one([](auto& x) {
         return x.view({60, 2}).view({12, 5, 2});
       }),
       .shapes = {{12, 5, 2}},
       .silent = [](auto& p) { return p[0].is_sharded(); }},
      {.name = "a sum stays one",
       .fn = one([](auto& x) {
         return x.view({60, 2}).t().unsqueeze(0).expand({3, 2, 60});
       }),
       .shapes = {{12, 5, 2}},
       .silent = [](auto&) { return true; }},
      {.name = "slices beside the shard",
       .fn = one([](auto& x) { return x.slice(1, 1, 3).select(1, 0).flip({1}).roll({1}, {1}); }),
       .shapes = {{5, 4, 3}},
       .silent = [](auto& p) { return is_shard(p, 0); }},
      {.name = "triangles",
       .fn = one([](auto& x) { return x.tril(1).triu(-1); }),
       .shapes = {{5, 7}},
       .silent = [](auto&) { return true; }},
      {.name = "the whole slice",
       .fn = one([](auto& x) { return x.slice(0, 0, 1000); }),
       .shapes = {{5, 7}},
       .silent = [](auto&) { return true; }},
      {.name = "cat beside the shard",
       .fn =
           [](auto& t) {
             return Tensors{at::cat({t[0], t[1]}, 1)};
           },
       .shapes = {{5, 2}, {5, 3}},
       .silent = [](auto& p) { return p[0] == p[1] && !is_shard(p, 1); }},
  });
}

TEST_CASE("writes through views reach the base, and autograd tracks them") {
  check_all({
      {.name = "flat slice",
       .fn = one([](auto& x) {
         auto y = x * 1;
         y.view({4, 6}).slice(1, 1, 5).mul_(3);
         return y;
       }),
       .shapes = {{4, 6}},
       .partial_inputs = false},
      {.name = "column filled",
       .fn = one([](auto& x) {
         auto y = x * 1;
         y.select(1, 2).fill_(7);
         return y * y;
       }),
       .shapes = {{5, 4}},
       .partial_inputs = false},
      {.name = "transposed",
       .fn = one([](auto& x) {
         auto y = x * 1;
         y.t().mul_(2);
         return y * y;
       }),
       .shapes = {{5, 4}}},
      {.name = "split",
       .fn = one([](auto& x) {
         auto y = x * 1;
         y.unsafe_chunk(2, 1)[0].detach().mul_(1);
         return y * y;
       }),
       .shapes = {{3, 4}},
       .partial_inputs = false},
  });
}

TEST_CASE("in-place changes of a tensor's own metadata") {
  check_all({
      {.name = "t_", .fn = one([](auto& x) { return (x * 2).t_() * 3; }), .shapes = {{3, 5}}},
      {.name = "transpose_", .fn = one([](auto& x) { return (x * 2).transpose_(0, 2); }), .shapes = {{3, 5, 2}}},
      {.name = "swapaxes_", .fn = one([](auto& x) { return (x * 2).swapaxes_(0, 1); }), .shapes = {{3, 5}}},
      {.name = "squeeze_", .fn = one([](auto& x) { return (x * 2).squeeze_(); }), .shapes = {{3, 1, 1}}},
      {.name = "squeeze_.dim", .fn = one([](auto& x) { return (x * 2).squeeze_(1); }), .shapes = {{3, 1, 1}}},
      {.name = "unsqueeze_", .fn = one([](auto& x) { return (x * 2).unsqueeze_(0); }), .shapes = {{3, 2}}},
      {.name = "detach_", .fn = one([](auto& x) { return x * (x * 2).detach_(); }), .shapes = {{3, 2}}},
  });
}

TEST_CASE("as_strided reads the memory that a plain tensor would have") {
  check_op({.name = "as_strided of nothing new",
            .fn = one([](auto& x) {
              return x.detach().as_strided({3, 4}, {4, 1});
            }),
            .shapes = {{3, 4}}});
  check_op({.name = "as_strided",
            .fn = one([](auto& x) {
              return x.detach().as_strided({2, 5}, {1, 2}, 1);
            }),
            .shapes = {{3, 4}}});
}

TEST_CASE("views in a world without data") {
  const DeviceMesh mesh(World::abstract(4096), {64, 64}, {"dp", "tp"});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{128, 512, 4096};
  const at::Tensor x = from_local({}, mesh, {Shard(0), Shard(2)}, options);
  const at::Tensor heads = x.view({128, 512, 64, 64}).transpose(1, 2);
  CHECK(to_string(meta_for_read(heads).spec->placements()) == "S(0)S(1)");
  const at::Tensor back = heads.transpose(1, 2).reshape({128 * 512, 4096});
  CHECK(to_string(meta_for_read(back).spec->placements()) == "S(0)S(1)");
  CHECK(back.sizes() == c10::IntArrayRef{128 * 512, 4096});
  CHECK_THROWS_WITH(x.view({3, -1}), Catch::Contains("is invalid for input of size"));
}

}  // namespace
