// Sorting along split dims: plain ATen's order, including nan, ties and gradients, without gathering all elements.
#include "mesh/world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/split_sort_cases.h"

namespace dtensor::testing {
namespace {

TEST_CASE("split sort: matches ATen's order", "[ops][split_sort]") {
  check_split_sorts(DeviceMesh(World::local(8), {8}, {"x"}), {Shard(0)});
  check_split_sorts(DeviceMesh(World::local(5), {5}, {"x"}), {Shard(0)});
}

TEST_CASE("split sort: replicas on another mesh dim", "[ops][split_sort]") {
  check_split_sorts(DeviceMesh(World::local(10), {2, 5}, {"dp", "x"}), {Replicate(), Shard(0)});
}

TEST_CASE("split sort: fewer rows than ranks", "[ops][split_sort]") {
  const DeviceMesh mesh(World::local(6), {6}, {"x"});
  for (const int64_t dim : {0, 1, 2}) {
    std::vector<int64_t> sizes = {3, 1};
    sizes.insert(sizes.begin() + dim, 4000);
    const at::Tensor x = at::randn(sizes, at::kDouble), d = lay_out(x, mesh, {Shard(dim)});
    const auto [values, indices] = d.sort(/*stable=*/true, dim, /*descending=*/true);
    CHECK(DTensor(values).placements() == Placements{Shard(dim)});
    CHECK(at::equal(full_tensor(values), std::get<0>(x.sort(true, dim, true))));
    CHECK(at::equal(full_tensor(indices), std::get<1>(x.sort(true, dim, true))));
    for (const bool keepdim : {false, true}) {
      CHECK(
          at::equal(full_tensor(std::get<0>(d.kthvalue(17, dim, keepdim))), std::get<0>(x.kthvalue(17, dim, keepdim))));
      CHECK(at::equal(full_tensor(std::get<1>(d.median(dim, keepdim))), std::get<1>(x.median(dim, keepdim))));
      CHECK(
          at::equal(full_tensor(std::get<0>(d.round().mode(dim, keepdim))), std::get<0>(x.round().mode(dim, keepdim))));
    }
  }
}

TEST_CASE("split sort: small tensors, and too few ranks to gain, follow the rule", "[ops][split_sort]") {
  const DeviceMesh mesh(World::local(8), {8}, {"x"});
  const at::Tensor x = at::randn({60}, at::kDouble), d = lay_out(x, mesh, {Shard(0)});
  CommDebugMode comm;
  CHECK(at::equal(full_tensor(std::get<0>(d.sort())), std::get<0>(x.sort())));
  CHECK(comm.count(Collective::kAllToAll) == 0);
  CHECK_THROWS_WITH(d.kthvalue(61), Catch::Contains("k out of range"));
  CHECK_THROWS_WITH(lay_out(at::randn({5000}, at::kDouble), mesh, {Shard(0)}).kthvalue(0),
                    Catch::Contains("k out of range"));
}

}  // namespace
}  // namespace dtensor::testing
