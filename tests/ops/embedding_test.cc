// Embedding tables in every layout. Cases named DE-* and LT-* are rows of the embedding seed's acceptance list
// (torch/distributed/tensor test_embedding_ops.py, its one-process variant included: all ranks are in this process).
// Also run with several processes (tests/processes): values and counts must be the same on every rank there.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/functional/embedding.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/hash/hash.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "ops/embedding/mask_buffer.h"
#include "propagation/rule_registry.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Catch::Contains;
using Tensors = std::vector<at::Tensor>;

namespace {

// 4 ranks of this process, or those of the job.
const DeviceMesh& ranks_mesh() {
  static const DeviceMesh mesh = [] {
    const char* ranks = std::getenv("WORLD_SIZE");
    return ranks == nullptr ? test_meshes()[0] : DeviceMesh(World::from_env(), {std::atoll(ranks)});
  }();
  return mesh;
}

const Placements& placements(const at::Tensor& t) { return meta_for_read(t).spec->placements(); }

at::Tensor replicated(const at::Tensor& t) {
  return from_local(Tensors(ranks_mesh().local_ranks().size(), t), ranks_mesh(), {Replicate()});
}

at::Tensor ids_in(int64_t rows, at::IntArrayRef shape) { return at::randint(rows, shape, at::kLong); }

std::string wrong(const at::Tensor& actual, const at::Tensor& expected) {
  return difference(actual, expected).value_or("");
}

struct Case {
  std::vector<int64_t> input;
  int64_t rows, cols;
  int64_t padding_idx = -1;
};

// The seed's _run_embedding_op_test, with targets of zeros as there and with random ones.
void run_embedding_test(int64_t shard_dim, const Case& c, bool random_targets) {
  at::manual_seed(0);
  const at::Tensor weight = at::randn({c.rows, c.cols}, at::kDouble);
  at::Tensor plain = weight.clone().requires_grad_();
  at::Tensor sharded = distribute_tensor(weight, ranks_mesh(), {Shard(shard_dim)}).detach().requires_grad_();
  at::manual_seed(10);
  const at::Tensor ids = ids_in(c.rows, c.input);
  std::vector<int64_t> shape = c.input;
  shape.push_back(c.cols);
  const at::Tensor target = random_targets ? at::rand(shape, at::kDouble) : at::zeros(shape, at::kDouble);

  CommDebugMode forward;
  const at::Tensor out = at::embedding(sharded, replicated(ids), c.padding_idx);
  CHECK(forward.total() == 0);
  const at::Tensor local_out = at::embedding(plain, ids, c.padding_idx);
  CHECK(wrong(out, local_out) == "");
  CHECK(placements(out)[0] ==
        (shard_dim == 1 ? Shard(static_cast<int64_t>(c.input.size())) : MaskPartial({c.rows, c.cols}, 0)));

  CommDebugMode reading;
  const at::Tensor full = full_tensor(out);
  CHECK(reading.counts() == std::map<std::string, int64_t>{{shard_dim == 1 ? "all_gather" : "all_reduce", 1}});
  CHECK(full.equal(local_out));

  at::cross_entropy_loss(local_out, target).backward();
  const at::Tensor loss = at::cross_entropy_loss(full, target);
  CommDebugMode backward;
  loss.backward();
  CHECK(backward.total() == 0);
  CHECK(placements(sharded.grad()) == Placements{Shard(shard_dim)});
  CHECK(wrong(sharded.grad(), plain.grad()) == "");
  CHECK(full_tensor(sharded.grad()).allclose(plain.grad()));
  CHECK((random_targets == (plain.grad().abs().sum().item<double>() > 0)));
  if (c.padding_idx >= 0) CHECK(full_tensor(sharded.grad())[c.padding_idx].abs().sum().item<double>() == 0);

  namespace F = torch::nn::functional;
  F::EmbeddingFuncOptions options;
  if (c.padding_idx >= 0) options.padding_idx(c.padding_idx);
  CHECK(full_tensor(F::embedding(replicated(ids), sharded, options)).equal(F::embedding(ids, plain, options)));
}

}  // namespace

TEST_CASE("DE-1 DE-3 DE-4 DE-11 LT-1: column-wise tables: values, gradients, no communication") {
  const std::vector<Case> cases = {{{5, 4}, 17, 12},          {{6, 7, 6}, 21, 11}, {{8, 6, 5, 4}, 23, 13},
                                   {{8, 6, 5, 4, 7}, 23, 16}, {{4}, 15, 14},       {{34}, 15, 14, 10},
                                   {{8, 6, 5, 4}, 23, 13, 12}};
  for (const Case& c : cases) {
    for (bool random_targets : {false, true}) run_embedding_test(1, c, random_targets);
  }
}

TEST_CASE("DE-2 DE-3 DE-4 DE-11 LT-1: row-wise tables: values, gradients, no communication") {
  for (const Case& c : std::vector<Case>{{{5, 12}, 16, 22}, {{6, 7, 6}, 13, 22}, {{34}, 15, 14, 10}}) {
    for (bool random_targets : {false, true}) run_embedding_test(0, c, random_targets);
  }
}

TEST_CASE("DE-12: ranks without rows") {
  for (const Case& c : std::vector<Case>{{{5, 4}, 5, 6}, {{7}, 9, 6, 8}, {{3, 2}, 2, 3}, {{3, 2}, 1, 3}})
    run_embedding_test(0, c, true);
}

TEST_CASE("DE-4 LT-1: a row-wise result is reduced once, by one all-reduce") {
  const auto table = distribute_tensor(at::rand({10, 20}), ranks_mesh(), {Shard(0)});
  const auto out = at::embedding(table, replicated(ids_in(10, {8, 8})));
  CHECK(placements(out)[0].is_mask_partial());
  CommDebugMode comm;
  full_tensor(out);
  CHECK(comm.total() == 1);
  CHECK(comm.count(Collective::kAllReduce) == 1);
}

TEST_CASE("DE-5 LT-1: max_norm has no sharding strategy, and the error says so") {
  namespace F = torch::nn::functional;
  for (int64_t dim : {0, 1}) {
    auto table = distribute_tensor(at::rand({23, 13}), ranks_mesh(), {Shard(dim)});
    const auto options = F::EmbeddingFuncOptions().padding_idx(12).max_norm(2.0);
    CommDebugMode comm;
    CHECK_THROWS_AS(F::embedding(replicated(ids_in(23, {8, 6, 5, 4})), table, options), c10::NotImplementedError);
    CHECK_THROWS_WITH(
        F::embedding(replicated(ids_in(23, {8, 6, 5, 4})), table, options),
        Contains("Operator aten.embedding_renorm_.default does not have a sharding strategy registered."));
    CHECK(comm.total() == 0);
  }
}

TEST_CASE("DE-6 DE-7 DE-8 LT-1: several row-wise tables: every value reduces, in any order, from one cached decision") {
  const auto ids = ids_in(10, {4, 4}), other_ids = ids_in(10, {4, 4});
  const auto a = at::rand({10, 23}), b = at::rand({10, 29}), c = at::rand({10, 29});
  const auto shard = [](const at::Tensor& t) { return distribute_tensor(t, ranks_mesh(), {Shard(0)}); };
  const auto out_a = at::embedding(shard(a), replicated(ids));
  const auto out_b = at::embedding(shard(b), replicated(ids));
  REQUIRE(placements(out_a)[0].is_mask_partial());
  CHECK(full_tensor(out_a).equal(at::embedding(a, ids)));
  REQUIRE(placements(out_b)[0].is_mask_partial());

  // The third table hits the cache; its ids, and so its mask, differ. B, which is not reduced yet, must not change.
  const auto before = strategy_cache(ranks_mesh().world()).stats();
  const auto out_c = at::embedding(shard(c), replicated(other_ids));
  const auto after = strategy_cache(ranks_mesh().world()).stats();
  CHECK(after.hits == before.hits + 1);
  CHECK(after.misses == before.misses);
  CHECK(meta_for_read(out_b).spec == meta_for_read(out_c).spec);
  CHECK(full_tensor(out_b).equal(at::embedding(b, ids)));
  CHECK(full_tensor(out_c).equal(at::embedding(c, other_ids)));
  CHECK(full_tensor(out_b).equal(at::embedding(b, ids)));
  CHECK(full_tensor(out_a).equal(at::embedding(a, ids)));

  const Placement pa = placements(out_a)[0], pb = placements(out_b)[0], pc = placements(out_c)[0];
  CHECK(pa != pc);
  CHECK(pb == pc);
  CHECK(absl::Hash<Placement>()(pb) == absl::Hash<Placement>()(pc));
  CHECK(to_string(pa) == "MaskP(sum, [10, 23], 0)");
}

TEST_CASE("DE-9: a mask buffer belongs to one mask at a time") {
  const auto ids = at::tensor(std::vector<int64_t>{0, 3, 5, 9});
  MaskBuffer mask;
  CHECK_THROWS_WITH(mask.apply_(at::rand({4, 2})), Contains("MaskBuffer has not been materialized"));
  CHECK_THROWS_WITH(mask.release(), Contains("MaskBuffer has not been materialized"));
  CHECK(mask.materialize(ids, 3, 3).equal(at::tensor(std::vector<int64_t>{0, 0, 2, 0})));
  CHECK_THROWS_WITH(mask.materialize(ids, 0, 3), Contains("MaskBuffer has been materialized with conflicting data"));
  mask.materialize(ids, 3, 3);  // the same mask: a second use
  auto rows = at::rand({4, 2}) + 1, elements = at::rand({4}) + 1;
  mask.apply_(rows);
  mask.apply_(elements);
  const auto kept = at::tensor(std::vector<int64_t>{0, 1, 1, 0}).to(at::kBool);
  CHECK(rows.ne(0).all(1).equal(kept));
  CHECK(rows.ne(0).any(1).equal(kept));
  CHECK(elements.ne(0).equal(kept));
  mask.release();
  CHECK(mask.materialized());
  mask.release();
  CHECK_FALSE(mask.materialized());
  CHECK_THROWS_WITH(mask.release(), Contains("MaskBuffer has not been materialized"));
  mask.materialize(ids, 0, 3);  // available for another mask
}

TEST_CASE("DE-10: a row-wise result becomes sharded by one reduce-scatter") {
  const auto table = at::rand({10, 6}), ids = ids_in(10, {9, 3});
  const auto out = at::embedding(distribute_tensor(table, ranks_mesh(), {Shard(0)}), replicated(ids));
  for (int64_t dim : {0, 1, 2}) {
    CommDebugMode comm;
    const auto sharded = redistribute(out, {Shard(dim)});
    CHECK(comm.counts() == std::map<std::string, int64_t>{{"reduce_scatter", 1}});
    CHECK(wrong(sharded, at::embedding(table, ids)) == "");
  }
}

TEST_CASE("DE-13: ids sharded by batch: the gradient of the replicated table is one sum over ranks") {
  const auto table = at::rand({10, 6}, at::kDouble), ids = ids_in(10, {9, 3}), seed = at::rand({9, 3, 6}, at::kDouble);
  at::Tensor plain = table.clone().requires_grad_();
  at::embedding(plain, ids).backward(seed);
  for (bool delay : {false, true}) {
    at::Tensor weight = lay_out(table, ranks_mesh(), {Replicate()}).requires_grad_();
    CommDebugMode comm;
    const auto out = at::embedding(weight, lay_out(ids, ranks_mesh(), {Shard(0)}));
    CHECK(placements(out) == Placements{Shard(0)});
    CHECK(comm.total() == 0);
    if (delay) {
      DelayGradientReduction delayed;
      out.backward(lay_out(seed, ranks_mesh(), {Shard(0)}));
      CHECK(comm.total() == 0);
      CHECK(placements(weight.grad()) == Placements{Partial()});
    } else {
      out.backward(lay_out(seed, ranks_mesh(), {Shard(0)}));
      CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_reduce", 1}});
      CHECK(placements(weight.grad()) == Placements{Replicate()});
    }
    CHECK(wrong(weight.grad(), plain.grad()) == "");
  }
}

namespace {

// "output <- input, input", sorted.
std::set<std::string> table_of(const OpCall& call) {
  std::set<std::string> rows;
  for (const DimStrategy& s : RuleRegistry::instance().find(call.op)->per_dim(call, 0)) {
    rows.insert(to_string(s.outputs[0]) + " <- " + to_string(s.inputs[0]) + ", " + to_string(s.inputs[1]));
  }
  return rows;
}

}  // namespace

TEST_CASE("DE-14: the strategy tables") {
  const auto spec = [](Shape sizes, c10::ScalarType dtype) {
    return Spec::get(ranks_mesh(), {Replicate()}, sizes, dtype);
  };
  const auto weight = spec({10, 23}, at::kFloat), ids = spec({4, 5}, at::kLong), grad = spec({4, 5, 23}, at::kFloat);
  CHECK(table_of(OpCall::make("aten::embedding", {weight, ids})) ==
        std::set<std::string>{"R <- R, R", "S(2) <- S(1), R", "MaskP(sum, [10, 23], 0) <- S(0), R", "S(0) <- R, S(0)",
                              "S(1) <- R, S(1)"});
  const std::set<std::string> anywhere = {"R <- R, R", "S(1) <- S(2), R", "P(sum) <- S(0), S(0)",
                                          "P(sum) <- S(1), S(1)", "P(sum) <- P(sum), R"};
  OpCall backward = OpCall::make("aten::embedding_dense_backward", {grad, ids}, {10, -1, false});
  CHECK(table_of(backward) == anywhere);

  // The table's own rows, for a row-sharded table.
  backward.context.gradient_target = weight;
  CHECK(table_of(backward) == anywhere);
  backward.context.gradient_target = weight->with_placements({Shard(1)});
  CHECK(table_of(backward) == anywhere);
  backward.context.gradient_target = weight->with_placements({Shard(0)});
  std::set<std::string> more_than_the_table = anywhere;
  more_than_the_table.insert("S(0) <- R, R");
  CHECK(table_of(backward) == more_than_the_table);
  OpCall few = OpCall::make("aten::embedding_dense_backward", {spec({2, 5, 23}, at::kFloat), spec({2, 5}, at::kLong)},
                            {10, -1, false});
  few.context.gradient_target = backward.context.gradient_target;
  CHECK(table_of(few) == std::set<std::string>{"S(0) <- R, R"});

  // Frequencies are those of the whole batch.
  CHECK(table_of(OpCall::make("aten::embedding_dense_backward", {grad, ids}, {10, -1, true})) ==
        std::set<std::string>{"R <- R, R", "S(1) <- S(2), R", "P(sum) <- P(sum), R"});
  const auto averaged = grad->with_placements({Partial(ReduceOp::kAvg)});
  CHECK(table_of(OpCall::make("aten::embedding_dense_backward", {averaged, ids}, {10, -1, true})) ==
        std::set<std::string>{"R <- R, R", "S(1) <- S(2), R", "P(sum) <- P(sum), R", "P(avg) <- P(avg), R"});
}

TEST_CASE("gradients of several tables: the batch is gathered once and every rank has its rows") {
  Tensors tables, sharded;
  const int64_t rows = 9, width = 3;
  for (int64_t i = 0; i < 3; ++i) {
    tables.push_back(at::arange((rows + i) * width, at::kDouble).view({rows + i, width}).sin().requires_grad_());
    sharded.push_back(distribute_tensor(tables[i].detach(), ranks_mesh(), {Shard(0)}).requires_grad_());
  }
  const at::Tensor ids = at::arange(36).remainder(rows).view({12, 3}),
                   split = distribute_tensor(ids, ranks_mesh(), {Shard(0)});
  const at::Tensor seed = at::arange(12 * width, at::kDouble).view({12, width}).cos();
  const auto loss = [&](const Tensors& from, const at::Tensor& batch, const at::Tensor& weights) {
    at::Tensor sum;
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor one = (at::embedding(from[i], batch.select(1, i)).pow(2) * weights).sum();
      sum = sum.defined() ? sum + one : one;
    }
    return sum;
  };
  loss(tables, ids, seed).backward();
  const at::Tensor value = loss(sharded, split, distribute_tensor(seed, ranks_mesh(), {Shard(0)}));
  CommDebugMode comm;
  value.backward();
  CAPTURE(comm.to_string());
  CHECK(comm.count(Collective::kAllGather) <= 1);
  for (int64_t i = 0; i < 3; ++i) CHECK(at::allclose(full_tensor(sharded[i].grad()), tables[i].grad(), 1e-12));
}

TEST_CASE("LT-3: local parts are checked, and uneven parts have their own sizes") {
  const auto part = at::rand({2, 3});
  const auto n = static_cast<int64_t>(ranks_mesh().local_ranks().size());
  CHECK_THROWS_AS(from_local({}, ranks_mesh(), {Shard(0)}), c10::Error);
  CHECK_THROWS_AS(from_local(Tensors(n + 1, part), ranks_mesh(), {Shard(0)}), c10::Error);
  if (n > 1) {
    Tensors parts(n, part);
    parts[n - 1] = part.to(at::kDouble);
    CHECK_THROWS_AS(from_local(parts, ranks_mesh(), {Shard(0)}), c10::Error);
    parts[n - 1] = part[0];
    CHECK_THROWS_AS(from_local(parts, ranks_mesh(), {Shard(0)}), c10::Error);
  }
  const auto t = distribute_tensor(at::rand({13, 22}), ranks_mesh(), {Shard(0)});
  const auto locals = to_local(t);
  REQUIRE(static_cast<int64_t>(locals.size()) == n);
  const auto expected = ranks_mesh().size() == 4 ? std::vector<int64_t>{4, 4, 4, 1} : std::vector<int64_t>{7, 6};
  for (int64_t i = 0; i < n; ++i) CHECK(locals[i].size(0) == expected[ranks_mesh().local_ranks()[i]]);
}
