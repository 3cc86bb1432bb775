// Scans along split dims: the values of plain ATen, with one exchange of the totals of the ranks' parts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logcumsumexp.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST_CASE("scans match ATen in every layout", "[ops][scans]") {
  const auto check = [](const char* name, auto fn, std::vector<int64_t> shape = {3, 26}) {
    OpCase c{name, fn, {std::move(shape)}};
    c.strided_inputs = true;
    check_op(c, 40);
  };
  check("cumsum", [](auto& t) { return Tensors{t[0].cumsum(1)}; });
  check("cumsum of rows", [](auto& t) { return Tensors{t[0].cumsum(0)}; }, {26, 3});
  check("cumsum, uneven", [](auto& t) { return Tensors{t[0].cumsum(-1)}; }, {2, 3, 17});
  check("cumsum, a part is empty", [](auto& t) { return Tensors{t[0].cumsum(0)}; }, {9});
  check("cumprod", [](auto& t) { return Tensors{t[0].cumprod(1)}; });
  check("logcumsumexp", [](auto& t) { return Tensors{t[0].logcumsumexp(1)}; });
  check("cummax", [](auto& t) {
    auto [values, indices] = t[0].cummax(1);
    return Tensors{values, indices};
  });
  check("cummin", [](auto& t) {
    auto [values, indices] = t[0].cummin(1);
    return Tensors{values, indices};
  });
}

TEST_CASE("scans of integers, of ties, of infinities and nan", "[ops][scans]") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& mesh : test_meshes()) {
    const Placements split(mesh.ndim(), Shard(0));
    const at::Tensor small = at::randint(-2, 3, {40}, at::TensorOptions(at::kInt));
    const auto d = distribute_tensor(small, mesh, split);
    CHECK(at::equal(full_tensor(d.cumsum(0)), small.cumsum(0)));
    CHECK(at::equal(full_tensor(d.cumprod(0)), small.cumprod(0)));
    CHECK(at::equal(full_tensor(d.cumsum(0, at::kDouble)), small.cumsum(0, at::kDouble)));
    CHECK(at::equal(full_tensor(std::get<1>(d.cummax(0))), std::get<1>(small.cummax(0))));
    CHECK(at::equal(full_tensor(std::get<1>(d.cummin(0))), std::get<1>(small.cummin(0))));
    CHECK(at::equal(full_tensor(d.ne(0).cumsum(0)), small.ne(0).cumsum(0)));
    at::Tensor odd = at::rand({40}, at::kDouble);
    odd[11] = kInf, odd[25] = -kInf;
    for (const double last : {0.5, kNan}) {
      odd[31] = last, odd[32] = last;
      const auto x = distribute_tensor(odd, mesh, split);
      CHECK(full_tensor(x.cumsum(0)).allclose(odd.cumsum(0), 1e-9, 1e-9, true));
      CHECK(full_tensor(x.logcumsumexp(0)).allclose(odd.logcumsumexp(0), 1e-9, 1e-9, true));
      CHECK(full_tensor(std::get<0>(x.cummax(0))).allclose(std::get<0>(odd.cummax(0)), 0, 0, true));
      CHECK(at::equal(full_tensor(std::get<1>(x.cummax(0))), std::get<1>(odd.cummax(0))));
      CHECK(at::equal(full_tensor(std::get<1>(x.cummin(0))), std::get<1>(odd.cummin(0))));
    }
  }
}

TEST_CASE("a scan exchanges one number per row and rank", "[ops][scans]") {
  const auto& mesh = test_meshes()[0];
  const auto x = distribute_tensor(at::rand({8, 64}, at::kDouble), mesh, {Shard(1)});
  for (const auto& scan : std::vector<std::function<at::Tensor()>>{
           [&] { return x.cumsum(1); }, [&] { return x.cumprod(1); }, [&] { return x.logcumsumexp(1); }}) {
    CommDebugMode comm;
    CHECK(DTensor(scan()).placements() == Placements{Shard(1)});
    CHECK(comm.count("all_gather") == 1);
    CHECK(comm.total() == 1);
  }
  CommDebugMode comm;
  x.cummax(1);
  CHECK(comm.total() <= 2);
}

}  // namespace
}  // namespace dtensor::testing
