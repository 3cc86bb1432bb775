// Reading views of distributed tensors after writes to the base: when they are read again, and the cost.
#include <torch/autograd.h>
#include <torch/optim.h>

#include <sstream>

#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/view_pairs.h"

namespace dtensor::testing {
using namespace internal;

namespace {

TEST_CASE("view reads: writes to the base do not communicate, and a view is read again once") {
  const DeviceMesh mesh = mesh_of(4);
  Pair x = make({12}, mesh, {Shard(0)});
  const Pair row = {x.plain[3], x.distributed[3]}, rows = {x.plain.slice(0, 1, 5), x.distributed.slice(0, 1, 5)};
  REQUIRE(spec_of(rows.distributed)->placements() == Placements{Replicate()});
  CommDebugMode comm;
  for (const Pair& v : {row, rows}) {
    v.plain.fill_(3);
    v.distributed.fill_(3);
  }
  CHECK(comm.total() == 0);
  rows.distributed.mul_(1);  // has its own write
  CHECK(comm.total() == 0);
  CHECK(row.distributed.item<double>() == 3);  // `rows` was written to since
  CHECK(comm.total() == 1);
  std::ostringstream report;
  report << comm;
  CHECK_THAT(report.str(), Catch::Contains("aten::select.int"));
  row.distributed.exp();
  CHECK(comm.total() == 1);
  comm.reset();
  for (int i = 0; i < 3; ++i) rows.distributed.fill_(i);  // overwriting does not read
  CHECK(comm.total() == 0);
  rows.plain.fill_(2);
  CHECK(same(x.distributed, x.plain));
}

TEST_CASE("view reads: operators that return a number read the view again") {
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
  CHECK_THROWS_WITH(to_local(z), Catch::Contains("Call fetch_parts(t) on all ranks of mesh(x=2)"));
  fetch_parts(z);
  CHECK(to_local(z)[1].sum().item<double>() == 8);
  x.fill_(5);
  CHECK_THROWS_WITH(DTensor(z).local(1), Catch::Contains("[DTensor::local] the parts of f64[2](R)"));
  CHECK_THAT(DTensor(z).to_string(), Catch::Contains("parts not fetched"));
  fetch_parts(z);
  CHECK(DTensor(z).local(1).sum().item<double>() == 10);
  CHECK_THROWS_WITH(mutable_local_tensors(z), Catch::Contains("is a view whose parts had to be copied"));
  x.fill_(6);
  CHECK(full_tensor(redistribute(z, {Shard(0)})).sum().item<double>() == 12);
}

TEST_CASE("mutable_local_tensors: an error for a view that this process copied because of its parts' strides") {
  const DeviceMesh mesh = mesh_of(2);
  const auto rows = from_local({torch::ones({2, 6}), torch::ones({2, 6})}, mesh, {Shard(0)});
  for (const Tensor& part : mutable_local_tensors(rows.view({4, 2, 3}))) part.fill_(3);
  CHECK(full_tensor(rows).sum().item<float>() == 72);
  const auto turned = from_local({torch::ones({2, 6}), torch::ones({6, 2}).t()}, mesh, {Shard(0)});
  const Tensor copied = turned.view({24});
  CHECK_THROWS_WITH(mutable_local_tensors(copied), Catch::Contains("this process had to copy") &&
                                                       Catch::Contains("Write to the view with an operator"));
  copied.fill_(3);
  CHECK(full_tensor(turned).sum().item<float>() == 72);
}

TEST_CASE("view reads: optimizers, copies and loads update views") {
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

TEST_CASE("view reads: operators that need no values do not read stale views") {
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

// Whether something is cached may differ between ranks; what is read may not.
TEST_CASE("view reads: looking for a reduced copy reads a stale view, also where nothing is cached") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  std::vector<Tensor> parts;
  for (int64_t rank = 0; rank < 4; ++rank) parts.push_back(numbers({3, 2}) + rank);
  const Tensor x = from_local(parts, mesh, {Shard(0), Partial()}) * 1, view = x.slice(0, 1, 5);
  x.mul_(2);
  REQUIRE(DTensor(view).placements()[1].is_partial());
  REQUIRE(meta_without_sync(view).storage->cached.if_made() == nullptr);
  REQUIRE_FALSE(has_parts(view));
  CHECK_FALSE(find_reduced_copy(view).defined());
  CHECK(has_parts(view));
}

// Because of strides, some ranks must copy for a view while others need not: communication must not depend on that, or
// processes would wait for each other.
TEST_CASE("view reads: strides of local parts do not change the communication") {
  const DeviceMesh mesh = mesh_of(2);
  const auto run = [&](bool strided) {
    std::vector<Tensor> parts;
    for (int i = 0; i < 2; ++i) {
      const Tensor values = numbers({2, 6}) + i;
      parts.push_back(strided ? values.t().contiguous().t() : values.clone());
    }
    const Tensor whole = torch::cat({parts[0], parts[1]});
    const Tensor x = from_local(parts, mesh, {Shard(0)}, {.strides = whole.strides().vec()});
    CommDebugMode comm;
    std::vector<int64_t> counts;
    const auto check = [&](const Tensor& t, const Tensor& expected) {
      CHECK(torch::equal(full_tensor(t), expected));
      counts.push_back(comm.total());
    };
    const Tensor view = x.view({24}), rows = view.slice(0, 1, 13), flat = whole.view({24});
    CHECK((meta_without_sync(view).storage->observer != nullptr) == strided);
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

}  // namespace
}  // namespace dtensor::testing
