// Arguments whose sizes do not fit, where the parts of some ranks do: every rank gets the error, of the whole sizes,
// before any of them computes.
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/histogram.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/nll_loss2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

using Catch::Contains;

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Misfit {
  std::string text;  // of the error
  Tensors tensors;
  std::vector<Placement> placements;
  std::function<void(const Tensors&)> call;
};

std::vector<Misfit> misfits() {
  const Placement r = Replicate(), s = Shard(0);
  const auto f = [](std::vector<int64_t> sizes) { return at::ones(sizes); };
  const auto i = [](std::vector<int64_t> sizes) { return at::zeros(sizes, at::kLong); };
  const auto b = [](std::vector<int64_t> sizes) { return at::ones(sizes, at::kBFloat16); };
  return {
      {"sorted_sequence should have one dim, or all sizes but the last in common with the values",
       {f({8, 5}), f({7, 3})},
       {r, s},
       [](auto& t) { at::searchsorted(t[0], t[1]); }},
      {"sorter should have the sizes of sorted_sequence",
       {f({8, 5}), f({8, 3}), i({8, 4})},
       {r, s, r},
       [](auto& t) { at::searchsorted(t[0], t[1], false, false, {}, t[2]); }},
      {"dim 1 of 'self' and dim 1 of 'B' should have the same size, not 4 and 5",
       {f({6, 4, 4}), f({6, 5, 2})},
       {r, s},
       [](auto& t) { at::linalg_solve_triangular(t[0], t[1], true); }},
      {"dim 1 of 'self' and dim 2 of 'B' should have the same size, not 4 and 5",
       {f({6, 4, 4}), f({6, 2, 5})},
       {r, Shard(1)},
       [](auto& t) { at::linalg_solve_triangular(t[0], t[1], true, false); }},
      {"dim 1 of 'self' and dim 1 of 'input2' should have the same size, not 5 and 4",
       {f({6, 5, 2}), f({6, 4, 4})},
       {Shard(2), r},
       [](auto& t) { at::cholesky_solve(t[0], t[1]); }},
      {"weight, if given, has one element for each that is counted",
       {f({6}), f({5})},
       {r, s},
       [](auto& t) {
         at::histogram(t[0], 4, std::vector<double>{0, 2}, t[1]);
       }},
      {"weight should have one element for each class",
       {f({6, 4, 3, 3}), i({6, 3, 3}), f({5})},
       {Shard(1), r, r},
       [](auto& t) { at::nll_loss2d(t[0], t[1], t[2]); }},
      {"argument 'offs' should have one element for each matrix of a batch",
       {b({8, 16}), b({2, 16, 24}), at::tensor({4, 6, 8}, at::kInt)},
       {r, r, r},
       [](auto& t) { at::_grouped_mm(t[0], t[1], t[2]); }},
  };
}

TEST_CASE("sizes that do not fit are an error of the whole call", "[ops]") {
  const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  for (const Misfit& misfit : misfits()) {
    CHECK(error_text([&] { misfit.call(misfit.tensors); }) != "");
    Tensors laid_out;
    for (size_t k = 0; k < misfit.tensors.size(); ++k)
      laid_out.push_back(distribute_tensor(misfit.tensors[k], mesh, {misfit.placements[k]}));
    const std::string error = error_text([&] { misfit.call(laid_out); });
    CHECK_THAT(error, Contains(misfit.text));
    CHECK_THAT(error, !Contains("on the parts of rank"));
  }
}

}  // namespace
}  // namespace dtensor::testing
