// Lookups in sharded tables against plain ones. Input and results differ per rank.
#include <ATen/ATen.h>

#include "observe/comm_debug_mode.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/factories.h"
#include "tests/sharded/lookup_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::sharded {
namespace {

using Catch::Contains;
using testing::error_text;

struct Case {
  std::vector<int64_t> shape;
  int64_t rows, columns;
  EmbeddingOptions options = {};
};

EmbeddingOptions padded(int64_t padding_idx) { return {.padding_idx = padding_idx}; }
EmbeddingOptions limited(double max_norm, double norm_type = 2) {
  return {.max_norm = max_norm, .norm_type = norm_type};
}

void check_case(const Case& c, int64_t dim) {
  const at::Tensor whole = table_of(c.rows, c.columns);
  const auto ids = ids_of_all(c.shape, c.rows, c.rows + c.columns);
  at::Tensor expected = whole.clone();
  if (c.options.max_norm) at::embedding_renorm_(expected, at::cat(ids), *c.options.max_norm, c.options.norm_type);
  for (const auto& order : rank_orders()) {
    const ShardedTensor weight = shard_tensor(whole, chunks(dim, order), test_world());
    const auto rows = embedding(own(ids), weight, c.options);
    REQUIRE(rows.size() == own_ranks().size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(at::allclose(rows[i], at::embedding(expected, ids[own_ranks()[i]])));
    }
    CHECK(shards_are(weight, expected));
  }
}

TEST_CASE("EB-1: embedding of tables sharded by columns") {
  const std::vector<Case> cases = {{{5, 4}, 17, 12},
                                   {{6, 7, 6}, 21, 11},
                                   {{8, 6, 5, 4}, 23, 13},
                                   {{8, 6, 5, 4, 7}, 23, 16},
                                   {{4}, 15, 14},
                                   {{34}, 15, 14, padded(10)},
                                   {{8, 6, 5, 4}, 23, 13, padded(12)},
                                   {{4, 5, 6}, 23, 13, limited(2.5)},
                                   {{12, 7, 16}, 23, 13, limited(2.5)},
                                   {{8, 16, 20}, 12, 12, limited(1.25, 1)},
                                   {{30}, 15, 14, limited(2.0)},
                                   {{7}, 9, 3, limited(0.5, INFINITY)},
                                   {{3}, 5, 2}};
  for (const Case& c : cases) check_case(c, 1);
}

TEST_CASE("EB-2: embedding of tables sharded by rows") {
  const std::vector<Case> cases = {{{5, 12}, 16, 22},
                                   {{5, 4}, 32, 12},
                                   {{6, 7, 6}, 64, 11},
                                   {{5, 12}, 16, 22, limited(2.5)},
                                   {{6, 7, 6}, 64, 11, padded(30)},
                                   {{6, 5, 3}, 26, 11, limited(2.0)},
                                   {{8, 6, 5, 4}, 19, 11},
                                   {{6, 7, 6}, 21, 11},
                                   {{4}, 21, 11},
                                   {{8, 6, 5, 4}, 21, 11, padded(10)},
                                   {{6, 5, 8}, 28, 5, limited(2.0)},
                                   {{4}, 14, 11, limited(2.5)},
                                   {{6}, 9, 4},
                                   {{6}, 2, 4, limited(0.5)}};
  for (const Case& c : cases) check_case(c, 0);
}

TEST_CASE("EB-1, EB-2: ranks may request different numbers of ids, in kInt too, and have no part of the table") {
  const at::Tensor whole = table_of(11, 6);
  const std::vector<at::Tensor> ids = {at::tensor({3, 10}, at::kInt), at::zeros({0}, at::kLong),
                                       at::tensor({1, 2, 0}, at::kLong).view({3, 1}), at::tensor({5}, at::kLong)};
  for (int64_t dim : {0, 1}) {
    for (const std::vector<int64_t>& order : {std::vector<int64_t>{2}, {3, 1}, {0, 1, 2, 3}}) {
      const auto rows = embedding(own(ids), shard_tensor(whole, chunks(dim, order), test_world()));
      for (size_t i = 0; i < rows.size(); ++i) CHECK(at::equal(rows[i], at::embedding(whole, ids[own_ranks()[i]])));
    }
  }
}

TEST_CASE("EB-3: rejected lookups throw on all ranks before anything is changed") {
  const ShardedTensor weight = shard_tensor(table_of(8, 4), chunks(0, {0, 1, 2, 3}), test_world());
  const auto with = [&](const at::Tensor& input, const EmbeddingOptions& options = {}) {
    return error_text([&] { embedding(own(std::vector<at::Tensor>(4, input)), weight, options); });
  };
  const at::Tensor ids = at::tensor({1, 2}, at::kLong);
  CHECK_THAT(with({}), Contains("input need to be torch.Tensor"));
  CHECK_THAT(with(at::tensor({1.5})), Contains("ids and offsets are kLong or kInt"));
  CHECK_THAT(with(at::tensor({1, 8})), Contains("Index out of range in Input 1 8"));
  CHECK_THAT(with(at::tensor({-1, 2})), Contains("Index out of range in Input -1 2"));
  CHECK_THAT(with(ids, {.max_norm = 0.0}), Contains("\"max_norm\" must be larger than zero!"));
  CHECK_THAT(with(ids, {.scale_grad_by_freq = true}),
             Contains("nn.Embedding weight sharded with flag on \"scale_grad_by_freq\" not supported!"));
  CHECK_THAT(with(ids, {.sparse = true}), Contains("flag on \"sparse\" not supported!"));
  CHECK_THAT(with(ids, {.padding_idx = 8}), Contains("padding_idx 8 must be within"));

  // One rank's error is thrown by all, without waiting.
  std::vector<at::Tensor> inputs(4, ids);
  inputs[2] = at::tensor({0.5});
  CHECK_THAT(error_text([&] { embedding(own(inputs), weight); }), Contains("rank 2"));
  inputs[2] = at::tensor({100}, at::kLong);
  CHECK_THAT(error_text([&] { embedding(own(inputs), weight, limited(0.1)); }), Contains("Index out of range"));
  CHECK(shards_are(weight, table_of(8, 4)));

  const auto of_table = [&](const ShardedTensor& table) {
    return error_text([&] { embedding(own(std::vector<at::Tensor>(4, ids)), table); });
  };
  CHECK_THAT(of_table(ones(chunks(0, {0, 1, 2, 3}), {8}, test_world())),
             Contains("Weight needs to have exactly 2 dims"));
  CHECK_THAT(of_table(ones(chunks(0, {0, 0, 1, 2}), {8, 2}, test_world())),
             Contains("Only one local shard supported!"));
  const EnumerableShardingSpec boxes(
      {ShardMetadata({0, 0}, {4, 2}, "rank:0/cpu"), ShardMetadata({4, 0}, {4, 2}, "rank:1/cpu")});
  CHECK_THAT(of_table(ones(boxes, {8, 2}, test_world())),
             Contains("Only ChunkShardingSpec supported for ShardedTensor ops!"));
}

struct BagCase {
  std::vector<int64_t> shape;
  int64_t rows, columns;
  EmbeddingBagOptions options;
  int64_t bags = 0;  // of 1-D input
};

EmbeddingBagOptions bag(const std::string& mode, std::optional<int64_t> padding = {},
                        std::optional<double> max_norm = {}, double norm_type = 2, bool last = false) {
  EmbeddingBagOptions o;
  o.padding_idx = padding;
  o.max_norm = max_norm;
  o.norm_type = norm_type;
  o.mode = mode;
  o.include_last_offset = last;
  return o;
}

// Offsets of bags, of which one is empty if there are several.
at::Tensor offsets_for(int64_t ids, int64_t bags, bool last, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  at::Tensor offsets = std::get<0>(at::randint(ids, {bags}, at::kLong).sort());
  offsets[0] = 0;
  if (last) offsets[bags - 1] = ids;
  return offsets;
}

int64_t mode_number(const std::string& mode) { return mode == "sum" ? 0 : mode == "mean" ? 1 : 2; }

at::Tensor plain_bag(const at::Tensor& table, const BagInput& in, const EmbeddingBagOptions& o) {
  at::Tensor ids = in.input, offsets = in.offsets, weights = in.per_sample_weights;
  bool last = o.include_last_offset;
  if (ids.dim() == 2) {
    offsets = at::arange(ids.size(0) + 1, at::kLong) * ids.size(1);
    ids = ids.reshape(-1);
    if (weights.defined()) weights = weights.reshape(-1);
    last = true;
  }
  std::optional<at::Tensor> psw;
  if (weights.defined()) psw = weights;
  return std::get<0>(
      at::embedding_bag(table, ids, offsets, false, mode_number(o.mode), false, psw, last, o.padding_idx));
}

std::vector<BagInput> bag_inputs(const BagCase& c, bool weighted) {
  std::vector<BagInput> inputs;
  const auto ids = ids_of_all(c.shape, c.rows, c.rows * 3 + c.columns);
  for (int64_t r = 0; r < 4; ++r) {
    BagInput in{ids[r]};
    if (c.options.padding_idx) in.input.view(-1)[r % in.input.numel()] = *c.options.padding_idx;  // so that it occurs
    if (c.bags > 0) in.offsets = offsets_for(c.shape[0], c.bags, c.options.include_last_offset, r + 40);
    if (weighted) in.per_sample_weights = at::rand(c.shape, at::kDouble) + 0.1;
    inputs.push_back(in);
  }
  return inputs;
}

at::Tensor all_ids(const std::vector<BagInput>& inputs) {
  std::vector<at::Tensor> ids;
  for (const BagInput& in : inputs) ids.push_back(in.input.reshape(-1));
  return at::cat(ids);
}

const std::vector<BagCase>& bag_cases() {
  static const std::vector<BagCase> cases = {{{5, 5}, 17, 14, bag("sum")},
                                             {{5, 5}, 17, 14, bag("sum", {}, 2.5)},
                                             {{5, 5}, 17, 14, bag("sum", 6)},
                                             {{5, 4}, 17, 12, bag("mean")},
                                             {{5, 4}, 17, 12, bag("mean", {}, 2.0, 1)},
                                             {{6, 7}, 21, 11, bag("max")},
                                             {{6, 7}, 21, 11, bag("max", {}, 1.5, 1)},
                                             {{8, 6}, 24, 13, bag("sum")},
                                             {{4, 3}, 16, 14, bag("max")},
                                             {{4, 3}, 16, 14, bag("sum", 12)},
                                             {{4, 3}, 16, 14, bag("mean", 12)},
                                             {{4, 3}, 16, 14, bag("max", 12)},
                                             {{8}, 23, 13, bag("sum"), 3},
                                             {{8}, 23, 13, bag("sum", {}, {}, 2, true), 3},
                                             {{5}, 17, 12, bag("mean"), 2},
                                             {{5}, 17, 12, bag("mean", {}, 1.25), 2},
                                             {{5}, 17, 12, bag("mean", 10, 1.25), 2},
                                             {{12}, 16, 12, bag("max"), 4},
                                             {{12}, 16, 12, bag("max", {}, {}, 2, true), 4},
                                             {{12}, 17, 12, bag("sum", {}, 1.25), 3},
                                             {{12}, 17, 12, bag("sum", 10), 3},
                                             {{5}, 17, 12, bag("max", {}, 1.15), 2},
                                             {{5}, 17, 12, bag("max", 10), 2},
                                             {{3, 2}, 3, 2, bag("mean", 0)},  // ranks without rows or columns
                                             {{1, 1}, 2, 5, bag("max", 1)}};  // a bag of padding alone
  return cases;
}

TEST_CASE("EB-4: embedding bags of tables sharded by rows and by columns; T22: padding does not count in means") {
  for (const BagCase& c : bag_cases()) {
    for (const bool weighted : {false, true}) {
      if (weighted && c.options.mode != "sum") continue;
      const at::Tensor whole = table_of(c.rows, c.columns);
      const auto inputs = bag_inputs(c, weighted);
      at::Tensor expected = whole.clone();
      if (c.options.max_norm) {
        at::embedding_renorm_(expected, all_ids(inputs), *c.options.max_norm, c.options.norm_type);
      }
      for (const int64_t dim : {0, 1}) {
        for (const auto& order : rank_orders()) {
          const ShardedTensor weight = shard_tensor(whole, chunks(dim, order), test_world());
          const auto pooled = embedding_bag(own(inputs), weight, c.options);
          for (size_t i = 0; i < pooled.size(); ++i) {
            CHECK(at::allclose(pooled[i], plain_bag(expected, inputs[own_ranks()[i]], c.options)));
          }
          CHECK(shards_are(weight, expected));
        }
      }
    }
  }
}

TEST_CASE("EB-4: rejected arguments of embedding bags") {
  const ShardedTensor weight = shard_tensor(table_of(8, 4), chunks(1, {0, 1, 2, 3}), test_world());
  const auto with = [&](const BagInput& in, const EmbeddingBagOptions& options) {
    return error_text([&] { embedding_bag(own(std::vector<BagInput>(4, in)), weight, options); });
  };
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong), two = ids.view({1, 3}),
                   begin = at::tensor({0, 2}, at::kLong);
  CHECK_THAT(with({at::zeros({1, 1, 1}, at::kLong)}, bag("sum")), Contains("Input more than 2 dims not supported"));
  CHECK_THAT(with({two, begin}, bag("sum")), Contains("Input dimension needs to be exactly 1 dim"));
  CHECK_THAT(with({ids}, bag("sum")), Contains("offsets is required for 1D input"));
  CHECK_THAT(with({two}, bag("median")), Contains("mode 'median' is not supported"));
  CHECK_THAT(with({two}, bag("sum", {}, {}, 2, true)),
             Contains("offsets is required for flag \"include_last_offset\"!"));
  CHECK_THAT(with({ids, begin}, bag("sum", {}, {}, 2, true)),
             Contains("offsets need to have the input size in the end"));
  CHECK_THAT(with({ids, at::tensor({1, 2}, at::kLong)}, bag("sum")), Contains("offsets[0] has to be 0"));
  CHECK_THAT(with({ids, at::tensor({0, 3, 2}, at::kLong)}, bag("sum")), Contains("offsets must not fall"));
  CHECK_THAT(with({two, {}, at::ones({1, 2}, at::kDouble)}, bag("sum")), Contains("per_sample_weights size"));
  CHECK_THAT(with({two, {}, at::ones({1, 3}, at::kDouble)}, bag("mean")), Contains("only supported for mode 'sum'"));
  CHECK_THAT(with({two, {}, at::ones({1, 3}, at::kFloat)}, bag("sum")),
             Contains("per_sample_weights have dtype Float"));
  CHECK_THAT(error_text([&] { embedding_bag(std::vector<BagInput>(7, {two}), weight); }), Contains("7 inputs for"));
}

TEST_CASE("EB-5: gradients of shards are windows of the whole table's; gradients of sample weights") {
  for (const BagCase& c : bag_cases()) {
    if (c.options.max_norm) continue;  // changes the table
    const bool weighted = c.options.mode == "sum";
    for (const int64_t dim : {0, 1}) {
      for (const auto& order : rank_orders()) {
        at::Tensor whole = table_of(c.rows, c.columns).requires_grad_();
        const ShardedTensor weight = shard_tensor(whole.detach().requires_grad_(), chunks(dim, order), test_world());
        auto plain_inputs = bag_inputs(c, weighted), inputs = bag_inputs(c, weighted);
        at::Tensor plain_loss = at::zeros({}, at::kDouble), loss = at::zeros({}, at::kDouble);
        for (int64_t r = 0; r < 4; ++r) {
          if (weighted)
            plain_inputs[r].per_sample_weights.requires_grad_(), inputs[r].per_sample_weights.requires_grad_();
          const at::Tensor pooled = plain_bag(whole, plain_inputs[r], c.options);
          plain_loss = plain_loss + (pooled * (pooled + r)).sum();
        }
        plain_loss.backward();
        const auto pooled = embedding_bag(own(inputs), weight, c.options);
        for (size_t i = 0; i < pooled.size(); ++i) loss = loss + (pooled[i] * (pooled[i] + own_ranks()[i])).sum();
        loss.backward();
        CHECK(shards_are(weight, whole.grad(), /*gradient=*/true));
        for (int64_t rank : own_ranks()) {
          if (!weighted) break;
          CHECK(at::allclose(inputs[rank].per_sample_weights.grad(), plain_inputs[rank].per_sample_weights.grad()));
        }
      }
    }
  }
}

TEST_CASE("EB-5: gradients of an embedding, without one for padding") {
  for (const std::optional<int64_t> padding : {std::optional<int64_t>(), std::optional<int64_t>(-2)}) {
    for (const int64_t dim : {0, 1}) {
      for (const std::vector<int64_t>& order : {std::vector<int64_t>{3, 0, 1, 2}, {1}}) {
        const auto ids = ids_of_all({3, 5}, 9, 7);
        at::Tensor whole = table_of(9, 6).requires_grad_();
        const ShardedTensor weight = shard_tensor(whole.detach().requires_grad_(), chunks(dim, order), test_world());
        at::Tensor expected = at::zeros({}, at::kDouble), loss = at::zeros({}, at::kDouble);
        for (const at::Tensor& t : ids) expected = expected + at::embedding(whole, t, padding ? 7 : -1).pow(3).sum();
        expected.backward();
        for (const at::Tensor& rows : embedding(own(ids), weight, {.padding_idx = padding}))
          loss = loss + rows.pow(3).sum();
        loss.backward();
        CHECK(shards_are(weight, whole.grad(), /*gradient=*/true));
      }
    }
  }
}

TEST_CASE("many tables at once: one all_gather of ids, one exchange of rows, one of their gradients") {
  const int64_t b = 6, n = 4, d = 8;
  std::vector<BagTable> tables;
  for (int64_t t = 0; t < 3; ++t) {
    const auto spec = t == 0 ? chunks(0, {0, 1, 2, 3}) : t == 1 ? chunks(1, {0, 1, 2, 3}) : chunks(0, {2});
    const ShardedTensor weight = shard_tensor(table_of(20, d).to(at::kFloat).requires_grad_(), spec, test_world());
    EmbeddingBagOptions options = bag("sum");
    options.same_sizes = true;
    std::vector<BagInput> inputs;
    for (const at::Tensor& ids : ids_of_all({b, 1}, 20, t)) inputs.push_back({ids});
    tables.push_back({weight, options, own(inputs)});
  }
  CommDebugMode comm;
  at::Tensor loss = at::zeros({});
  for (const auto& of_table : embedding_bags(tables)) {
    for (const at::Tensor& pooled : of_table) loss = loss + pooled.sum();
  }
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_gather", 1}, {"all_to_all", 1}});
  CHECK(comm.bytes(Collective::kAllGather) == (n - 1) * b * 3 * 8);
  // Row-wise (n-1) b D e, column-wise b D e (n-1)/n, table-wise b D e.
  CHECK(comm.bytes(Collective::kAllToAll) == (n - 1) * b * d * 4 + b * d * 4 * (n - 1) / n + b * d * 4);
  comm.reset();
  loss.backward();
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_to_all", 1}});
  // Row-wise (n-1) b D e of gradients, column-wise a quarter, and the owner of the last all of its rows' gradients.
  CHECK(comm.bytes() == (n - 1) * b * d * 4 + (n - 1) * b * (d / n) * 4 + (n - 1) * b * d * 4);
}

}  // namespace
}  // namespace dtensor::sharded
