// Collectives on plain tensors: the results and gradients of the same formula on all ranks' tensors with plain ATen.
#include "dtensor/collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor sines(c10::IntArrayRef sizes, int64_t seed) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) + 100 * static_cast<double>(seed)).view(sizes).sin();
}

// One [rows[i], 3] per rank, not contiguous.
Tensors parts_of(const std::vector<int64_t>& rows) {
  Tensors parts;
  for (size_t i = 0; i < rows.size(); ++i) parts.push_back(sines({3, rows[i]}, static_cast<int64_t>(i)).t());
  return parts;
}

void check_equal(const Tensors& actual, const Tensors& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("rank " << i << " has " << actual[i] << " and should have " << expected[i]);
    REQUIRE(actual[i].defined() == expected[i].defined());
    if (!actual[i].defined()) continue;
    CHECK(actual[i].scalar_type() == expected[i].scalar_type());
    CHECK(actual[i].sizes() == expected[i].sizes());
    CHECK(at::allclose(actual[i], expected[i]));
  }
}

// Four ranks in a row.
DeviceMesh line() { return DeviceMesh(World::local(4), {4}, {"tp"}); }

using Call = std::function<Tensors(const Tensors&)>;

Tensors gradients(const Call& call, const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.detach().requires_grad_());
  const Tensors results = call(leaves);
  Tensor loss = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < results.size(); ++i) {
    CHECK(results[i].requires_grad());
    loss = loss + (results[i].pow(2) * sines(results[i].sizes(), static_cast<int64_t>(7 + i))).sum();
  }
  loss.backward();
  Tensors grads;
  for (const Tensor& leaf : leaves) grads.push_back(leaf.grad());
  return grads;
}

// Results, gradients, and the number of collectives: one forward, one backward.
void check_call(const Call& call, const Call& plain, const Tensors& inputs, const std::string& forward,
                const std::string& backward) {
  check_equal(call(inputs), plain(inputs));
  CommDebugMode comm;
  const Tensors actual = gradients(call, inputs);
  CHECK(comm.total() == 2);
  CHECK(comm.count(forward) == (forward == backward ? 2 : 1));
  CHECK(comm.count(backward) == (forward == backward ? 2 : 1));
  check_equal(actual, gradients(plain, inputs));
}

TEST_CASE("all_reduce of four tensors is their sum or mean, and its gradient the sum or mean of all gradients") {
  const DeviceMesh mesh = line();
  const auto repeated = [](const Tensor& t) { return Tensors(4, t); };
  check_call([&](const Tensors& t) { return all_reduce(t, mesh, "tp"); },
             [&](const Tensors& t) { return repeated(at::stack(t).sum(0)); }, parts_of({2, 2, 2, 2}), "all_reduce",
             "all_reduce");
  check_call([&](const Tensors& t) { return all_reduce(t, mesh, "tp", ReduceOp::kAvg); },
             [&](const Tensors& t) { return repeated(at::stack(t).mean(0)); }, parts_of({2, 2, 2, 2}), "all_reduce",
             "all_reduce");
  check_equal(all_reduce(parts_of({2, 2, 2, 2}), mesh, "tp", ReduceOp::kMax),
              repeated(at::stack(parts_of({2, 2, 2, 2})).amax(0)));
}

TEST_CASE("all_gather_tensor concatenates along any dim, of parts of any sizes, one of them empty") {
  const DeviceMesh mesh = line();
  const auto cat = [](int64_t dim) { return [=](const Tensors& t) { return Tensors(4, at::cat(t, dim)); }; };
  check_call([&](const Tensors& t) { return all_gather_tensor(t, mesh, "tp"); }, cat(0), parts_of({2, 2, 2, 2}),
             "all_gather", "reduce_scatter");
  check_call([&](const Tensors& t) { return all_gather_tensor(t, mesh, "tp", -1); }, cat(1), parts_of({2, 2, 2, 2}),
             "all_gather", "reduce_scatter");
  check_call(
      [&](const Tensors& t) {
        return all_gather_tensor(t, mesh, "tp", 0, {3, 0, 1, 2});
      },
      cat(0), parts_of({3, 0, 1, 2}), "all_gather", "reduce_scatter");
}

TEST_CASE("reduce_scatter_tensor gives position i the i-th part of the sum, of equal or given sizes") {
  const DeviceMesh mesh = line();
  const Tensors inputs = parts_of({8, 8, 8, 8});
  check_call([&](const Tensors& t) { return reduce_scatter_tensor(t, mesh, "tp"); },
             [](const Tensors& t) { return at::stack(t).sum(0).chunk(4); }, inputs, "reduce_scatter", "all_gather");
  check_call(
      [&](const Tensors& t) {
        return reduce_scatter_tensor(t, mesh, "tp", 0, ReduceOp::kAvg, {5, 0, 1, 2});
      },
      [](const Tensors& t) {
        return at::stack(t).mean(0).split_with_sizes({5, 0, 1, 2});
      },
      inputs, "reduce_scatter", "all_gather");
  check_equal(reduce_scatter_tensor(inputs, mesh, "tp", -1, ReduceOp::kMin, {0, 0, 2, 1}),
              at::stack(inputs).amin(0).split_with_sizes({0, 0, 2, 1}, 1));
}

TEST_CASE("all_to_all_single exchanges equal parts, or parts of given sizes") {
  const DeviceMesh mesh = line();
  const auto plain = [](const std::vector<std::vector<int64_t>>& sent) {
    return [=](const Tensors& t) {
      Tensors results;
      for (size_t to = 0; to < 4; ++to) {
        Tensors arriving;
        for (size_t from = 0; from < 4; ++from) arriving.push_back(t[from].split_with_sizes(sent[from])[to]);
        results.push_back(at::cat(arriving));
      }
      return results;
    };
  };
  check_call([&](const Tensors& t) { return all_to_all_single(t, mesh, "tp"); },
             plain({{2, 2, 2, 2}, {2, 2, 2, 2}, {2, 2, 2, 2}, {2, 2, 2, 2}}), parts_of({8, 8, 8, 8}), "all_to_all",
             "all_to_all");
  const AllToAllSplits splits{.output_split_sizes = {{1, 0, 3, 0}, {2, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 1, 0}},
                              .input_split_sizes = {{1, 2, 0, 1}, {0, 0, 1, 1}, {3, 0, 0, 1}, {0, 0, 0, 0}}};
  check_call([&](const Tensors& t) { return all_to_all_single(t, mesh, "tp", splits); },
             plain(splits.input_split_sizes), parts_of({4, 2, 4, 0}), "all_to_all", "all_to_all");
}

TEST_CASE("permute_tensor moves tensors along a ring; positions that get none have zeros") {
  const DeviceMesh mesh = line();
  check_call(
      [&](const Tensors& t) {
        return permute_tensor(t, mesh, "tp", {1, 2, 3, 0});
      },
      [](const Tensors& t) {
        return Tensors{t[3] * 1, t[0] * 1, t[1] * 1, t[2] * 1};
      },
      parts_of({2, 2, 2, 2}), "permute", "permute");
  check_call(
      [&](const Tensors& t) {
        return permute_tensor(t, mesh, "tp", {2, -1, 1, -1});
      },
      [](const Tensors& t) {
        return Tensors{t[1] * 0, t[2] * 1, t[0] * 1, t[3] * 0};
      },
      parts_of({2, 2, 2, 2}), "permute", "permute");
}

TEST_CASE("broadcast, scatter and gather move tensors from or to one position, send_recv between two") {
  const DeviceMesh mesh = line();
  const Tensors inputs = parts_of({4, 4, 4, 4});
  check_equal(broadcast(inputs, mesh, "tp", 2), Tensors(4, inputs[2]));
  check_equal(scatter(inputs, mesh, "tp", 3), inputs[3].chunk(4));
  check_equal(scatter(inputs, mesh, "tp", 0, 1, {0, 1, 0, 2}), inputs[0].split_with_sizes({0, 1, 0, 2}, 1));
  check_equal(gather(inputs, mesh, "tp", 1), {{}, at::cat(inputs), {}, {}});
  const Tensors uneven = parts_of({3, 0, 1, 2});
  check_equal(gather(uneven, mesh, "tp", 3, 0, {3, 0, 1, 2}), {{}, {}, {}, at::cat(uneven)});
  check_equal(send_recv(inputs, mesh, "tp", 3, 1), {{}, inputs[3], {}, {}});
}

TEST_CASE("results are in memory of their own") {
  const DeviceMesh mesh = line();
  const Tensors inputs = parts_of({4, 4, 4, 4});
  for (const Tensors& results : {broadcast(inputs, mesh, "tp"), permute_tensor(inputs, mesh, "tp", {0, 1, 2, 3})}) {
    for (const Tensor& t : results) t.zero_();
  }
  check_equal(inputs, parts_of({4, 4, 4, 4}));
}

TEST_CASE("on a 2-D mesh a collective along one dim is one for each of its groups, which may differ in sizes") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  const Tensors inputs = parts_of({1, 1, 1, 2, 2, 2});
  const Tensor first = at::cat({inputs[0], inputs[1], inputs[2]}), second = at::cat({inputs[3], inputs[4], inputs[5]});
  CommDebugMode comm;
  check_equal(all_gather_tensor(inputs, mesh, "tp"), {first, first, first, second, second, second});
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 2 * 2 * 3 * 8);
  const Tensors same = parts_of({2, 2, 2, 2, 2, 2});
  const auto sum = [&](size_t i) { return same[i] + same[i + 3]; };
  check_equal(all_reduce(same, mesh, "dp"), {sum(0), sum(1), sum(2), sum(0), sum(1), sum(2)});
  check_equal(send_recv(same, mesh, "dp", 1, 0), {same[3], same[4], same[5], {}, {}, {}});
  // A slice of the mesh has the same groups, and its own order of ranks.
  const Tensors of_slice = all_reduce({same[0], same[3], same[1], same[4], same[2], same[5]}, mesh["dp"], "dp");
  check_equal(of_slice, {sum(0), sum(0), sum(1), sum(1), sum(2), sum(2)});
  barrier(mesh);
  CHECK(comm.count("barrier") == 1);
}

TEST_CASE("collectives take integers, booleans, and tensors without dims or elements") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensors ints{at::arange(2), at::arange(2) + 5};
  check_equal(all_reduce(ints, mesh, "tp"), Tensors(2, ints[0] + ints[1]));
  const Tensors flags{at::ones({2}, at::kBool), at::zeros({2}, at::kBool)};
  check_equal(all_gather_tensor(flags, mesh, "tp"), Tensors(2, at::cat(flags)));
  const Tensors numbers{at::full({}, 2.), at::full({}, 3.)};
  check_equal(all_reduce(numbers, mesh, "tp", ReduceOp::kProduct), Tensors(2, at::full({}, 6.)));
  check_equal(permute_tensor(numbers, mesh, "tp", {1, 0}), {numbers[1], numbers[0]});
  check_equal(all_to_all_single({at::ones({0, 3}), at::ones({0, 3})}, mesh, "tp"), Tensors(2, at::ones({0, 3})));
  check_equal(all_gather_tensor({at::ones({2, 0}), at::ones({2, 0})}, mesh, "tp"), Tensors(2, at::ones({4, 0})));
}

TEST_CASE("a result that the loss does not use counts as zeros in the gradient, also in a MeshScope") {
  const DeviceMesh mesh = line();
  Tensors inputs = parts_of({4, 4, 4, 4});
  for (Tensor& t : inputs) t = t.detach().requires_grad_();
  const MeshScope scope(mesh);
  const Tensors gathered = all_gather_tensor(inputs, mesh, "tp");
  gathered[1].pow(2).sum().backward();
  for (const Tensor& t : inputs) CHECK(at::allclose(t.grad(), t * 2));
}

TEST_CASE("a part of a result that the loss does not use counts as zeros in the gradient, also in a MeshScope") {
  const DeviceMesh mesh = line();
  Tensors inputs = parts_of({4, 4, 4, 4});
  for (Tensor& t : inputs) t = t.detach().requires_grad_();
  const MeshScope scope(mesh);
  const Tensors gathered = all_gather_tensor(inputs, mesh, "tp");
  gathered[1].split(4)[2].pow(2).sum().backward();
  gathered[3].unbind(0)[0].sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor expected;
    {
      const PlainFactories plain;
      expected = at::zeros({4, 3}, at::kDouble);
    }
    if (i == 2) expected = inputs[i].detach() * 2;
    if (i == 0) expected[0] += 1;
    CHECK(at::allclose(inputs[i].grad(), expected));
  }
}

TEST_CASE("gradients of gradients pass through all_gather_tensor") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  Tensors inputs = parts_of({2, 2});
  for (Tensor& t : inputs) t = t.detach().requires_grad_();
  const Tensors gathered = all_gather_tensor(inputs, mesh, "tp");
  const Tensor loss = gathered[0].pow(3).sum() + gathered[1].pow(3).sum();
  const Tensor grad =
      torch::autograd::grad({loss}, {inputs[0]}, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/true)[0];
  CHECK(at::allclose(grad, inputs[0].pow(2) * 6));
  CHECK(at::allclose(torch::autograd::grad({grad.sum()}, {inputs[0]})[0], inputs[0] * 12));
}

TEST_CASE("calls are reported as explicit with their function, and in an abstract world with 0 bytes") {
  const DeviceMesh mesh = line();
  CommDebugMode comm;
  all_gather_tensor(parts_of({2, 2, 2, 2}), mesh, "tp");
  reduce_scatter_tensor(parts_of({4, 4, 4, 4}), mesh, "tp");
  REQUIRE(comm.rows().size() == 2);
  for (const CommRow& row : comm.rows()) {
    CHECK(!row.implicit);
    CHECK(row.op == std::string(to_string(row.collective)) + "_tensor");
    CHECK(row.bytes == (row.collective == Collective::kAllGather ? 3 * 2 * 3 * 8 : 3 * 1 * 3 * 8));
  }
  all_gather_tensor(parts_of({3, 0, 1, 2}), mesh, "tp", 0, {3, 0, 1, 2});
  reduce_scatter_tensor(parts_of({5, 5, 5, 5}), mesh, "tp", 0, ReduceOp::kSum, {0, 2, 1, 2});
  scatter(parts_of({4, 4, 4, 4}), mesh, "tp", 0, 0, {1, 0, 3, 0});
  gather(parts_of({3, 0, 1, 2}), mesh, "tp", 2, 0, {3, 0, 1, 2});
  broadcast(parts_of({2, 2, 2, 2}), mesh, "tp");
  permute_tensor(parts_of({2, 2, 2, 2}), mesh, "tp", {1, 0, 2, 3});
  permute_tensor(parts_of({2, 2, 2, 2}), mesh, "tp", {0, 1, 2, 3});
  all_to_all_single(parts_of({4, 4, 4, 4}), mesh, "tp");
  send_recv(parts_of({2, 2, 2, 2}), mesh, "tp", 0, 1);
  all_reduce(parts_of({2, 2, 2, 2}), mesh, "tp");
  for (const CommEvent& event : comm.events()) {
    INFO(event.cause.op);
    CHECK(event.received_bytes == event.bytes);
  }
  comm.reset();
  const DeviceMesh abstract(World::abstract(64), {8, 8}, {"dp", "tp"});
  const auto x = zeros({64, 4}, abstract, {Replicate(), Shard(0)});
  CHECK(all_to_all_single(to_local(x), abstract, "tp").empty());
  CHECK(send_recv(to_local(x), abstract, "dp", 0, 1).empty());
  CHECK(comm.total() == 2);
  CHECK(comm.bytes() == 0);
}

TEST_CASE("the parts of a distributed tensor are reduced by all_reduce, and gradients return to it") {
  const DeviceMesh mesh = line();
  const Tensor x = distribute_tensor(sines({8, 3}, 1), mesh, {Shard(0)}).requires_grad_();
  const Tensors sums = all_reduce(to_local(x), mesh, "tp");
  const Tensor y = from_local(sums, mesh, {Replicate()});
  CHECK(at::allclose(full_tensor(y), full_tensor(x).view({4, 2, 3}).sum(0)));
  y.sum().backward();
  // The loss of the replicated y counts on each of the four ranks.
  CHECK(at::allclose(full_tensor(x.grad()), at::full({8, 3}, 4., at::kDouble)));
}

TEST_CASE("tensors that do not fit the mesh or one another are errors that name function, rank and shapes") {
  using Catch::Contains;
  const DeviceMesh mesh = line();
  const Tensors four = parts_of({2, 2, 2, 2});
  CHECK_THROWS_WITH(all_reduce(parts_of({2, 2}), mesh, "tp"), Contains("[all_reduce] 2 tensors") && Contains("owns 4"));
  CHECK_THROWS_WITH(all_reduce(four, mesh, "dp"), Contains("dp"));
  CHECK_THROWS_WITH(all_reduce(parts_of({2, 3, 2, 2}), mesh, "tp"),
                    Contains("ranks 0 and 1 along 'tp' pass Double[2, 3] and Double[3, 3]"));
  CHECK_THROWS_WITH(all_gather_tensor(parts_of({2, 3, 2, 2}), mesh, "tp"), Contains("ranks 0 and 1"));
  CHECK_THROWS_WITH(all_gather_tensor(four, mesh, "tp", 2), Contains("gather_dim is 2") && Contains("[2, 3]"));
  const DeviceMesh two(World::local(2), {2, 1}, {"dp", "tp"});
  CHECK_THROWS_WITH(all_gather_tensor({at::ones({2, 3}), at::ones({2, 3, 4})}, two, "tp", -1),
                    Contains("gather_dim is -1, and tensors have 2 and 3 dims"));
  CHECK_THROWS_WITH(all_gather_tensor(four, mesh, "tp", 0, {2, 2, 2}), Contains("sizes is [2, 2, 2]"));
  CHECK_THROWS_WITH(all_gather_tensor(four, mesh, "tp", 0, {2, 2, 1, 3}), Contains("rank 2 at position 2"));
  CHECK_THROWS_WITH(reduce_scatter_tensor(four, mesh, "tp"),
                    Contains("a dim of size 2 has no equal parts for 4 ranks"));
  CHECK_THROWS_WITH(reduce_scatter_tensor(four, mesh, "tp", 0, ReduceOp::kSum, {1, 1, 1, 1}),
                    Contains("must add up to 2"));
  CHECK_THROWS_WITH(all_to_all_single(four, mesh, "tp", {.input_split_sizes = {{}, {}, {}, {}}}),
                    Contains("give both input_split_sizes and output_split_sizes"));
  const std::vector<std::vector<int64_t>> first(4, {2, 0, 0, 0}), last(4, {0, 0, 0, 2});
  CHECK_THROWS_WITH(all_to_all_single(four, mesh, "tp", {.output_split_sizes = last, .input_split_sizes = first}),
                    Contains("rank 0 sends 2 rows to rank 0, which expects 0"));
  CHECK_THROWS_WITH(permute_tensor(four, mesh, "tp", {1, 1, 2, 3}), Contains("positions 0 and 1 send to position 1"));
  CHECK_THROWS_WITH(permute_tensor(four, mesh, "tp", {4, 1, 2, 3}), Contains("an entry of src_dst is 4"));
  CHECK_THROWS_WITH(broadcast(four, mesh, "tp", 4), Contains("src is 4"));
  CHECK_THROWS_WITH(send_recv(four, mesh, "tp", 1, 1), Contains("src and dst are both 1"));
  CHECK_THROWS_WITH(all_reduce({four[0], four[1], {}, four[3]}, mesh, "tp"), Contains("rank 2 is undefined"));
  const Tensor x = ones({4}, mesh);
  CHECK_THROWS_WITH(all_reduce({x, x, x, x}, mesh, "tp"), Contains("rank 0 is distributed already"));
  CHECK_THROWS_WITH(all_reduce({at::ones({}), at::ones({}), at::ones({}), at::ones({}, at::kInt)}, mesh, "tp"),
                    Contains("ranks 0 and 3"));
  CHECK_THROWS_WITH(all_to_all_single(Tensors(4, at::ones({})), mesh, "tp"), Contains("has no dims"));
  CHECK_THROWS_WITH(all_reduce(Tensors(4, at::ones({2}).requires_grad_()), mesh, "tp", ReduceOp::kMax),
                    Contains("max has no gradient here: detach()"));
  CHECK_THROWS_WITH(barrier(DeviceMesh()), Contains("[barrier] no mesh"));
}

}  // namespace
}  // namespace dtensor
