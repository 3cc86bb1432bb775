// Every collective of World::local against plain arithmetic on stacked tensors.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <thread>

#include "comm/communicator.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kLong, at::kBool, at::kBFloat16, at::kHalf};

// Meshes on 6 ranks and the dims to communicate along: whole worlds, subgroups, an unusual rank order, some ranks only.
struct Case {
  DeviceMesh mesh;
  std::vector<int64_t> dims;
};

std::vector<Case> cases() {
  const auto world = World::local(6);
  const DeviceMesh mesh(world, {2, 3}, {"dp", "tp"});
  return {{DeviceMesh(world, {6}), {0}},
          {mesh, {0}},
          {mesh, {1}},
          {mesh, {0, 1}},
          {mesh["dp"], {0}},
          {DeviceMesh(world, {3, 2}, {}, {5, 0, 3, 2, 1, 4}), {0}},
          {DeviceMesh(world, {2, 1}, {}, {4, 1}), {1}},
          {DeviceMesh(world, {2}, {}, {4, 1}), {0}}};
}

// Calls check(call, communicator, rank index -> members of its group, rank index -> its position).
template <typename Check>
void for_each_case(Check check) {
  for (const auto& [mesh, dims] : cases()) {
    CAPTURE(mesh.to_string(), mesh.ranks(), dims);
    const CommCall call = call_on(mesh, dims);
    check(
        call, mesh.world().communicator(),
        [&call](size_t i) { return call.group->members[call.group->group_of[call.ranks[i]]]; },
        [&call](size_t i) { return call.group->position_of[call.ranks[i]]; });
  }
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(a, b);
}

// What a reduction should give, from ATen's reductions of the stacked addends.
at::Tensor expected_reduction(const std::vector<at::Tensor>& addends, ReduceOp op) {
  const auto dtype = addends[0].scalar_type();
  auto all = at::stack(addends);
  if (c10::isReducedFloatingType(dtype)) all = all.to(at::kFloat);
  switch (op) {
    case ReduceOp::kSum:
      return (dtype == at::kBool ? all.any(0) : all.sum(0)).to(dtype);
    case ReduceOp::kAvg:
      return all.mean(0).to(dtype);
    case ReduceOp::kProduct:
      return (dtype == at::kBool ? all.all(0) : all.prod(0)).to(dtype);
    case ReduceOp::kMin:
      return all.amin(0).to(dtype);
    case ReduceOp::kMax:
      return all.amax(0).to(dtype);
    case ReduceOp::kNorm2:
      break;  // no collective's: a plan makes it of a sum
  }
  return {};
}

bool close(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (op != ReduceOp::kAvg) return same(a, b);  // small whole numbers: exact in every dtype
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.allclose(b);
}

std::vector<ReduceOp> reduce_ops(at::ScalarType dtype) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};
  if (c10::isFloatingType(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

// Sizes differ between ranks; every third rank has nothing.
at::Tensor uneven(at::ScalarType dtype, int64_t rank, int64_t to = 0) {
  return values({(rank + to) % 3, 2}, dtype, rank + 10 * to);
}

TEST_CASE("all_gather", "[mesh][local_communicator]") {
  for (auto dtype : kDtypes) {
    for_each_case([&](const CommCall& call, Communicator& communicator, auto members, auto) {
      RankTensors inputs;
      for (int64_t rank : call.ranks) inputs.push_back(uneven(dtype, rank));
      const auto results = communicator.all_gather(call, inputs);
      REQUIRE(results.size() == inputs.size());
      for (size_t i = 0; i < results.size(); ++i) {
        std::vector<at::Tensor> expected;
        for (int64_t member : members(i)) expected.push_back(uneven(dtype, member));
        REQUIRE(results[i].size() == expected.size());
        for (size_t p = 0; p < expected.size(); ++p) CHECK(same(results[i][p], expected[p]));
        CHECK(same(at::cat(results[i]), at::cat(expected)));
      }
    });
  }
}

TEST_CASE("all_reduce", "[mesh][local_communicator]") {
  for (auto dtype : kDtypes) {
    for (auto op : reduce_ops(dtype)) {
      for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 2}, {}, {0, 4}}) {
        for_each_case([&](const CommCall& call, Communicator& communicator, auto members, auto) {
          CAPTURE(dtype, to_string(op), shape);
          RankTensors inputs;
          for (int64_t rank : call.ranks) inputs.push_back(values(shape, dtype, rank));
          const auto results = communicator.all_reduce(call, inputs, op);
          REQUIRE(results.size() == inputs.size());
          for (size_t i = 0; i < results.size(); ++i) {
            std::vector<at::Tensor> addends;
            for (int64_t member : members(i)) addends.push_back(values(shape, dtype, member));
            CHECK(close(results[i], expected_reduction(addends, op), op));
            CHECK(same(inputs[i], values(shape, dtype, call.ranks[i])));  // untouched
          }
        });
      }
    }
  }
}

TEST_CASE("reduce_scatter of uneven pieces", "[mesh][local_communicator]") {
  for (auto dtype : kDtypes) {
    for (auto op : reduce_ops(dtype)) {
      for_each_case([&](const CommCall& call, Communicator& communicator, auto members, auto position) {
        const auto piece = [&](int64_t rank, int64_t p) { return values({p % 3, 2}, dtype, rank + 10 * p); };
        RankPieces inputs;
        for (int64_t rank : call.ranks) {
          auto& pieces = inputs.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) pieces.push_back(piece(rank, p));
        }
        const auto results = communicator.reduce_scatter(call, inputs, op);
        REQUIRE(results.size() == inputs.size());
        for (size_t i = 0; i < results.size(); ++i) {
          std::vector<at::Tensor> addends;
          for (int64_t member : members(i)) addends.push_back(piece(member, position(i)));
          CHECK(close(results[i], expected_reduction(addends, op), op));
        }
      });
    }
  }
}

TEST_CASE("all_to_all of uneven pieces", "[mesh][local_communicator]") {
  for (auto dtype : kDtypes) {
    for_each_case([&](const CommCall& call, Communicator& communicator, auto members, auto position) {
      RankPieces inputs;
      for (size_t i = 0; i < call.ranks.size(); ++i) {
        auto& pieces = inputs.emplace_back();
        for (int64_t to : members(i)) pieces.push_back(uneven(dtype, call.ranks[i], to));
      }
      const auto results = communicator.all_to_all(call, inputs);
      REQUIRE(results.size() == inputs.size());
      for (size_t i = 0; i < results.size(); ++i) {
        REQUIRE(static_cast<int64_t>(results[i].size()) == call.group->size);
        for (int64_t p = 0; p < call.group->size; ++p) {
          CHECK(same(results[i][p], uneven(dtype, members(i)[p], call.ranks[i])));
        }
        CHECK_FALSE(results[i][position(i)].is_alias_of(inputs[i][position(i)]));
      }
    });
  }
}

TEST_CASE("broadcast, scatter, gather and permute", "[mesh][local_communicator]") {
  for (auto dtype : kDtypes) {
    for_each_case([&](const CommCall& call, Communicator& communicator, auto members, auto position) {
      const int64_t root = call.group->size - 1;
      RankTensors inputs, only_root;
      RankPieces pieces;
      for (size_t i = 0; i < call.ranks.size(); ++i) {
        inputs.push_back(uneven(dtype, call.ranks[i]));
        only_root.push_back(position(i) == root ? inputs[i] : at::Tensor());
        pieces.emplace_back();
        if (position(i) != root) continue;
        for (int64_t to : members(i)) pieces[i].push_back(uneven(dtype, call.ranks[i], to));
      }
      std::vector<int64_t> sources;  // position p gets p + 1's
      for (int64_t p = 0; p < call.group->size; ++p) sources.push_back((p + 1) % call.group->size);

      const auto broadcast = communicator.broadcast(call, only_root, root);
      const auto scattered = communicator.scatter(call, pieces, root);
      const auto gathered = communicator.gather(call, inputs, root);
      const auto permuted = communicator.permute(call, inputs, sources);
      communicator.barrier(call);
      for (size_t i = 0; i < call.ranks.size(); ++i) {
        const auto group = members(i);
        CHECK(same(broadcast[i], uneven(dtype, group[root])));
        CHECK_FALSE(broadcast[i].is_alias_of(inputs[i]));
        CHECK(same(scattered[i], uneven(dtype, group[root], call.ranks[i])));
        CHECK(same(permuted[i], uneven(dtype, group[sources[position(i)]])));
        CHECK_FALSE(permuted[i].is_alias_of(inputs[i]));
        REQUIRE(gathered[i].size() == (position(i) == root ? group.size() : 0));
        for (size_t p = 0; p < gathered[i].size(); ++p) CHECK(same(gathered[i][p], uneven(dtype, group[p])));
      }
    });
  }
}

TEST_CASE("results alias nothing", "[mesh][local_communicator]") {
  for (int64_t n : {1, 3}) {
    const DeviceMesh mesh(World::local(n), {n});
    const auto call = call_on(mesh, {0});
    auto& communicator = mesh.world().communicator();
    RankTensors inputs;
    RankPieces pieces(n);
    std::vector<int64_t> identity;
    for (int64_t r = 0; r < n; ++r) {
      inputs.push_back(at::full({2}, r));
      for (int64_t p = 0; p < n; ++p) pieces[r].push_back(inputs[r]);
      identity.push_back(r);
    }
    for (const RankPieces& results : {communicator.all_gather(call, inputs), communicator.all_to_all(call, pieces),
                                      communicator.gather(call, inputs, 0)}) {
      for (const auto& of_rank : results) {
        for (size_t p = 0; p < of_rank.size(); ++p) {
          for (int64_t j = 0; j < n; ++j) CHECK_FALSE(of_rank[p].is_alias_of(inputs[j]));
          for (size_t q = 0; q < p; ++q) CHECK_FALSE(of_rank[p].is_alias_of(of_rank[q]));
        }
      }
    }
    for (auto& results :
         {communicator.all_reduce(call, inputs, ReduceOp::kSum), communicator.all_reduce(call, inputs, ReduceOp::kMax),
          communicator.reduce_scatter(call, pieces, ReduceOp::kSum), communicator.broadcast(call, inputs, 0),
          communicator.scatter(call, pieces, 0), communicator.permute(call, inputs, identity)}) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          CHECK_FALSE(results[i].is_alias_of(inputs[j]));
          CHECK((i == j || !results[i].is_alias_of(results[j])));
        }
      }
    }
  }
}

TEST_CASE("an all_reduce of expanded tensors can be written to", "[mesh][local_communicator]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto ones = at::full({1}, 1.0).expand({3});
  auto results = mesh.world().communicator().all_reduce(call_on(mesh, {0}), {ones, ones}, ReduceOp::kSum);
  for (auto& result : results) {
    result.select(0, 0).add_(1);
    CHECK(at::equal(result.sum(), at::scalar_tensor(7.0, result.options())));
  }
}

TEST_CASE("reductions add in the order of the group", "[mesh][local_communicator]") {
  const DeviceMesh mesh(World::local(4), {4}, {}, {2, 0, 3, 1});
  // In this order, and in few others, the float32 sum is 1.
  const RankTensors inputs = {at::full({1}, 1e8f), at::full({1}, 1.f), at::full({1}, -1e8f), at::full({1}, 1.f)};
  for (const auto& sum : mesh.world().communicator().all_reduce(call_on(mesh, {0}), inputs, ReduceOp::kSum)) {
    CHECK(sum.item<float>() == 1.f);
  }
}

TEST_CASE("half types accumulate in float32", "[mesh][local_communicator]") {
  const DeviceMesh mesh(World::local(4), {4});
  const auto bf16 = [](double x) { return at::full({1}, x, at::kBFloat16); };
  // Added in bfloat16, 256 + 1 is 256 each time.
  const RankTensors inputs = {bf16(256), bf16(1), bf16(1), bf16(2)};
  for (const auto& sum : mesh.world().communicator().all_reduce(call_on(mesh, {0}), inputs, ReduceOp::kSum)) {
    CHECK(sum.scalar_type() == at::kBFloat16);
    CHECK(sum.item<float>() == 260.f);
  }
}

TEST_CASE("two threads communicate in one world", "[mesh][local_communicator]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  std::atomic<int> wrong{0};
  const auto work = [&](int64_t dim, int64_t seed) {
    const auto call = call_on(mesh, {dim});
    for (int round = 0; round < 200; ++round) {
      RankTensors inputs;
      for (int64_t rank : call.ranks) inputs.push_back(at::full({8}, rank + seed + round, at::kLong));
      const auto sums = mesh.world().communicator().all_reduce(call, inputs, ReduceOp::kSum);
      const auto pieces = mesh.world().communicator().all_gather(call, sums);
      for (size_t i = 0; i < call.ranks.size(); ++i) {
        const auto& members = call.group->members[call.group->group_of[call.ranks[i]]];
        const auto expected = at::full({8}, members[0] + members[1] + 2 * (seed + round), at::kLong);
        wrong += !at::equal(sums[i], expected) || !at::equal(pieces[i][1], expected);
      }
    }
  };
  std::thread other([&] { work(0, 1000); });
  work(1, 5);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("mismatched arguments are errors before anything moves", "[mesh][local_communicator]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto call = call_on(mesh, {1});
  auto& comm = mesh.world().communicator();
  const auto a = at::zeros({2, 3}), b = at::zeros({3, 3}), whole = at::zeros({2, 3}, at::kLong), none = at::Tensor();

  CHECK_THROWS_WITH(
      comm.all_reduce(call, {a, a, a, b}, ReduceOp::kSum),
      Contains("all_reduce: ranks 2 and 3 of group tp pass shapes [2, 3] and [3, 3]; they must be equal"));
  comm.all_reduce(call, {a, a, b, b}, ReduceOp::kSum);  // groups may differ
  CHECK_THROWS_WITH(comm.all_reduce(call, {a, whole, a, a}, ReduceOp::kSum),
                    Contains("ranks 0 and 1 of group tp pass dtypes Float and Long"));
  CHECK_THROWS_WITH(comm.all_reduce(call, {a, a}, ReduceOp::kSum),
                    Contains("all_reduce: got inputs for 2 ranks but call.ranks has 4"));
  CHECK_THROWS_WITH(comm.all_reduce(call, {a, none, a, a}, ReduceOp::kSum),
                    Contains("a tensor of rank 1 is undefined"));
  CHECK_THROWS_WITH(comm.all_reduce(call, {whole, whole, whole, whole}, ReduceOp::kAvg),
                    Contains("all_reduce: avg of dtype Long is no Long; use sum"));
  const auto complex = at::zeros({1}, at::kComplexFloat);
  CHECK_THROWS_WITH(comm.all_reduce(call, {complex, complex, complex, complex}, ReduceOp::kMax),
                    Contains("max of complex dtype ComplexFloat is not defined"));
  CHECK_THROWS_WITH(comm.all_gather(call, {a, whole, a, a}),
                    Contains("all_gather: ranks 0 and 1 of group tp pass dtypes"));
  CHECK_THROWS_WITH(comm.reduce_scatter(call, {{a, b}, {a, a}, {a, a}, {a, a}}, ReduceOp::kSum),
                    Contains("reduce_scatter: ranks 0 and 1 of group tp pass shapes [3, 3] and [2, 3]"));
  CHECK_THROWS_WITH(comm.reduce_scatter(call, {{a, a}, {a}, {a, a}, {a, a}}, ReduceOp::kSum),
                    Contains("rank 1 passes 1 pieces; group tp needs one per position, 2"));
  CHECK_THROWS_WITH(comm.all_to_all(call, {{a, a}, {a, whole}, {a, a}, {a, a}}),
                    Contains("all_to_all: rank 1 passes pieces of Float and Long"));
  CHECK_THROWS_WITH(comm.broadcast(call, {a, a, a, a}, 2),
                    Contains("broadcast: source is 2; it must be a position in group tp, 0..1"));
  CHECK_THROWS_WITH(comm.broadcast(call, {a, none, a, a}, 1), Contains("a tensor of rank 1 is undefined"));
  CHECK_THROWS_WITH(comm.scatter(call, {{a, a}, {}, {a}, {}}, 0), Contains("scatter: rank 2 passes 1 pieces"));
  CHECK_THROWS_WITH(comm.gather(call, {a, a, a, a}, -1), Contains("gather: target is -1"));
  CHECK_THROWS_WITH(comm.permute(call, {a, a, a, a}, {0}), Contains("permute: sources has 1 entries"));
  CHECK_THROWS_WITH(comm.permute(call, {a, a, a, a}, {0, 2}), Contains("permute: a source is 2"));

  CommCall wrong;
  CHECK_THROWS_WITH(comm.barrier(wrong), Contains("barrier: call.group is null"));
  wrong.group = call.group;
  const std::vector<int64_t> half = {0, 2}, outside = {0, 4};
  wrong.ranks = half;
  CHECK_THROWS_WITH(comm.all_reduce(wrong, {a, a}, ReduceOp::kSum),
                    Contains("has rank 0 but not rank 1 of the same group tp"));
  CHECK_THROWS_WITH(comm.all_gather(wrong, {a, a}),
                    Contains("a message goes from rank 0 to rank 1, but call.ranks has no rank 1"));
  wrong.ranks = outside;
  CHECK_THROWS_WITH(comm.all_reduce(wrong, {a, a}, ReduceOp::kSum),
                    Contains("rank 4 of call.ranks is in no group of tp"));
  CommCall shapes = call;
  shapes.receive_shapes = {{{2, 3}}};
  CHECK_THROWS_WITH(comm.all_gather(shapes, {a, a, a, a}), Contains("receive_shapes has 1 entries for 4 owned ranks"));
  shapes.receive_shapes.assign(4, {Shape{2, 3}});
  CHECK_THROWS_WITH(comm.all_gather(shapes, {a, a, a, a}),
                    Contains("receive_shapes of rank 0 has 1 shapes; the rank receives 2"));
}

}  // namespace
}  // namespace dtensor
