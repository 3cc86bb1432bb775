// Worlds whose peers do not exist.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

TEST_CASE("an abstract world answers with no tensors and reports the calls", "[mesh][dry_communicator]") {
  const DeviceMesh mesh(World::abstract(4096), {512, 8}, {"dp", "tp"});
  auto& comm = mesh.world().communicator();
  auto call = call_on(mesh, {1});
  call.event.bytes = 77;
  Recorder recorder;
  {
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    CHECK(comm.all_gather(call, {}).empty());
    CHECK(comm.all_reduce(call, {}, ReduceOp::kAvg).empty());
    CHECK(comm.reduce_scatter(call, {}, ReduceOp::kSum).empty());
    CHECK(comm.all_to_all(call, {}).empty());
    CHECK(comm.broadcast(call, {}, 7).empty());
    CHECK(comm.scatter(call, {}, 7).empty());
    CHECK(comm.gather(call, {}, 7).empty());
    CHECK(comm.permute(call, {}, {0, 1, 2, 3, 4, 5, 6, 7}).empty());
    comm.barrier(call);
  }
  REQUIRE(recorder.events.size() == 18);
  for (const auto& [event, before] : recorder.events) CHECK(event.received_bytes == -1);
  CHECK(recorder.events[0].first.bytes == 77);
  CHECK(recorder.events[0].first.group_size == 8);
  CHECK_THROWS_WITH(comm.broadcast(call, {}, 8), Contains("source is 8"));
}

TEST_CASE("a fake world allocates the results that others would send", "[mesh][dry_communicator]") {
  const DeviceMesh mesh(World::fake(6, 4), {2, 3}, {"dp", "tp"});  // position 1 of group {3, 4, 5}
  auto& comm = mesh.world().communicator();
  auto call = call_on(mesh, {1});
  REQUIRE(call.ranks == std::vector<int64_t>{4});
  const auto own = values({2, 3}, at::kLong, 1);
  const Pieces pieces = {values({1, 3}, at::kLong, 1), values({4, 3}, at::kLong, 2), values({0, 3}, at::kLong, 3)};
  const auto is_zeros = [](const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType dtype) {
    return t.sizes() == sizes && t.scalar_type() == dtype && at::equal(t, at::zeros(sizes, dtype));
  };

  const auto is_copy = [](const at::Tensor& t, const at::Tensor& of) { return at::equal(t, of) && !t.is_alias_of(of); };

  SECTION("reductions have the shape of the addends and are fresh") {
    const auto sum = comm.all_reduce(call, {own}, ReduceOp::kSum);
    CHECK(at::equal(sum.at(0), own));
    CHECK_FALSE(sum[0].is_alias_of(own));
    const auto piece = comm.reduce_scatter(call, {pieces}, ReduceOp::kSum);
    CHECK(at::equal(piece.at(0), pieces[1]));
    CHECK_FALSE(piece[0].is_alias_of(pieces[1]));
  }
  SECTION("without receive_shapes the input's shape is used") {
    const auto gathered = comm.all_gather(call, {own}).at(0);
    REQUIRE(gathered.size() == 3);
    CHECK(is_zeros(gathered[0], {2, 3}, at::kLong));
    CHECK(is_copy(gathered[1], own));
    const auto exchanged = comm.all_to_all(call, {pieces}).at(0);
    REQUIRE(exchanged.size() == 3);
    CHECK(is_zeros(exchanged[0], {1, 3}, at::kLong));
    CHECK(is_copy(exchanged[1], pieces[1]));
    CHECK(is_zeros(exchanged[2], {0, 3}, at::kLong));
    CHECK(is_zeros(comm.broadcast(call, {own}, 0).at(0), {2, 3}, at::kLong));
    CHECK(comm.gather(call, {own}, 0).at(0).empty());
    CHECK_THROWS_WITH(comm.broadcast(call, {at::Tensor()}, 0), Contains("fill in call.receive_shapes"));
    CHECK_THROWS_WITH(comm.scatter(call, {{}}, 0), Contains("fill in call.receive_shapes"));
  }
  SECTION("receive_shapes determine the results") {
    call.receive_shapes = {{{5, 3}, {2, 3}, {0, 3}}};
    const auto gathered = comm.all_gather(call, {own}).at(0);
    CHECK(is_zeros(gathered[0], {5, 3}, at::kLong));
    CHECK(is_copy(gathered[1], own));
    CHECK(is_zeros(gathered[2], {0, 3}, at::kLong));
    const auto exchanged = comm.all_to_all(call, {pieces}).at(0);
    CHECK(is_zeros(exchanged[0], {5, 3}, at::kLong));
    CHECK(is_zeros(exchanged[2], {0, 3}, at::kLong));
    const auto target = comm.gather(call, {own}, 1).at(0);
    REQUIRE(target.size() == 3);
    CHECK(is_zeros(target[0], {5, 3}, at::kLong));
    CHECK(is_copy(target[1], own));
  }
  SECTION("one piece from another rank") {
    call.receive_shapes = {{{7}}};
    call.event.dtype = at::kBFloat16;
    CHECK(is_zeros(comm.broadcast(call, {at::Tensor()}, 0).at(0), {7}, at::kBFloat16));
    CHECK(is_zeros(comm.scatter(call, {{}}, 2).at(0), {7}, at::kBFloat16));
    CHECK(is_zeros(comm.permute(call, {own}, {1, 2, 0}).at(0), {7}, at::kLong));
  }
  SECTION("a rank's message to itself is a copy") {
    for (const auto& result : {comm.broadcast(call, {own}, 1).at(0), comm.permute(call, {own}, {0, 1, 2}).at(0)}) {
      CHECK(at::equal(result, own));
      CHECK_FALSE(result.is_alias_of(own));
    }
    CHECK(at::equal(comm.scatter(call, {pieces}, 1).at(0), pieces[1]));
  }
}

}  // namespace
}  // namespace dtensor
