// Shards, the tensors that have them, and factories.
#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

using Numbers = std::vector<int64_t>;

TEST_CASE("SH-1 shards whose tensor differs from their metadata") {
  CHECK_NOTHROW(Shard(at::zeros({5, 5}), ShardMetadata({0, 0}, {5, 5}, "rank:0/cpu")));
  CHECK_ERROR(c10::ValueError,
              "Shard tensor size does not match with metadata.shard_lengths! Found shard tensor size: [5, 5], "
              "metadata.shard_lengths: [6, 5], ",
              Shard(at::zeros({5, 5}), ShardMetadata({0, 0}, {6, 5}, "rank:0/cpu")));
  CHECK_ERROR(
      c10::ValueError,
      "Local shard tensor device does not match with local Shard's placement! Found local shard tensor device: cpu, "
      "local shard metadata placement device: meta",
      Shard(at::zeros({5, 5}), ShardMetadata({0, 0}, {5, 5}, "rank:0/meta")));
  const Shard none(at::zeros({10}), ShardMetadata({0}, {10}));
  CHECK(!none.metadata.placement);
}

TEST_CASE("SH-2 shards from tensor and offsets") {
  const Shard shard = Shard::from_tensor_and_offsets(at::zeros({5, 5}), {5, 0}, 1);
  CHECK(shard.metadata == ShardMetadata({5, 0}, {5, 5}, "rank:1/cpu"));
  CHECK_ERROR(c10::ValueError, "same number of elements", Shard::from_tensor_and_offsets(at::zeros({5, 5}), {5}, 1));
}

TEST_CASE("ST-1 a tensor of shards without any process group") {
  ShardedTensorMetadata metadata;
  metadata.size = {4, 2};
  metadata.shards_metadata = {ShardMetadata({0, 0}, {2, 2}, "rank:0/cpu"), ShardMetadata({2, 0}, {2, 2}, "rank:1/cpu")};
  const auto shards_of = [&](const at::Tensor& whole) {
    std::vector<Shard> shards;
    for (const ShardMetadata& md : metadata.shards_metadata) shards.emplace_back(window(whole, md), md);
    return shards;
  };
  auto base = ShardedTensorBase::init_from_local_shards_and_global_metadata(shards_of(at::zeros({4, 2})), metadata);
  CHECK(base.local_shards().size() == 2);
  CHECK(base.metadata() == metadata);
  CHECK(base.sizes() == c10::IntArrayRef({4, 2}));
  CHECK(base.sharding_spec() == AnyShardingSpec(chunks(0, {0, 1})));
  const at::Tensor wide = counted({2, 4}).t();  // slices that are not contiguous
  auto slices = ShardedTensorBase::init_from_local_shards_and_global_metadata(shards_of(wide), metadata);
  CHECK(at::equal(slices.local_shards()[1].tensor, wide.narrow(0, 2, 2)));

  ShardedTensorMetadata bad = metadata;
  bad.shards_metadata.clear();
  CHECK_ERROR(c10::ValueError, "shards_metadata must not be empty!",
              ShardedTensorBase::init_from_local_shards_and_global_metadata({}, bad));
  bad = metadata;
  bad.tensor_properties.layout = c10::kSparse;
  CHECK_ERROR(c10::ValueError, "Only torch.strided layout is currently supported",
              ShardedTensorBase::init_from_local_shards_and_global_metadata({}, bad));
  bad = metadata;
  bad.size = {5, 2};
  CHECK_ERROR(c10::ValueError, "does not match tensor volume",
              ShardedTensorBase::init_from_local_shards_and_global_metadata({}, bad));
}

TEST_CASE("ST-2 sizes in every form") {
  for (const auto& sizes :
       {global_size(c10::IValue(c10::List<int64_t>({10, 20}))), global_size(c10::ivalue::Tuple::create({10, 20}))}) {
    CHECK(sizes == Numbers{10, 20});
    CHECK(empty(chunks(0), sizes, test_world()).sizes() == c10::IntArrayRef({10, 20}));
  }
  CHECK(global_size(10) == Numbers{10});
  CHECK(empty(chunks(0), {10}, test_world()).sizes() == c10::IntArrayRef({10}));
  CHECK_ERROR(c10::TypeError, "size has to be a sequence of ints, found: foo", global_size(c10::IValue("foo")));
  CHECK_ERROR(c10::TypeError, "size has to be a sequence of ints, found: (10, 1.5)",
              global_size(c10::ivalue::Tuple::create({10, 1.5})));
  CHECK_ERROR(c10::ValueError, "must be >= 0", empty(chunks(0), {-10}, test_world()));
}

TEST_CASE("ST-3 metadata and properties of empty") {
  for (const AnyShardingSpec& spec : {AnyShardingSpec(chunks(0)), AnyShardingSpec(grid())}) {
    const std::vector<int64_t> size = spec.as<ChunkShardingSpec>() ? Numbers{10, 20} : Numbers{10, 10};
    const ShardedTensor st = empty(spec, size, test_world());
    CHECK(st.metadata().size == size);
    CHECK(st.sizes() == c10::IntArrayRef(size));
    CHECK(st.dtype() == at::kFloat);
    CHECK(st.tensor().scalar_type() == at::kFloat);
    CHECK(st.layout() == c10::kStrided);
    CHECK(!st.requires_grad());
    CHECK(st.is_contiguous());
    CHECK(!st.is_pinned());
    CHECK(st.is_floating_point());
    CHECK(!st.is_meta());
    CHECK(empty(spec, size, test_world(), {.dtype = at::kDouble}).dtype() == at::kDouble);
    const ShardedTensor with_grad = empty(spec, size, test_world(), {.requires_grad = true});
    CHECK(with_grad.requires_grad());
    CHECK(with_grad.tensor().requires_grad());
    for (int64_t rank : test_world().owned_ranks()) CHECK(with_grad.local_tensor(rank).requires_grad());
  }
}

TEST_CASE("ST-4 pinned memory") {
  if (!at::hasCUDA()) {
    WARN("SKIPPED: no GPU");
    return;
  }
  CHECK(empty(chunks(0), {10, 20}, test_world(), {.pin_memory = true}).is_pinned());
}

TEST_CASE("ST-5 requires_grad cannot be assigned") {
  const ShardedTensor st = empty(chunks(0), {10, 20}, test_world());
  CHECK_ERROR(c10::Error, "torch function '__set__'", st.set_requires_grad(true));
  CHECK(!st.requires_grad());
}

TEST_CASE("ST-6 ten rows over four ranks") {
  for (int64_t dim : {0, -2}) {
    const ShardedTensor st = empty(chunks(dim), {10, 20}, test_world());
    REQUIRE(st.metadata().shards_metadata.size() == 4);
    for (int64_t r = 0; r < 4; ++r) {
      const ShardMetadata& md = st.metadata().shards_metadata[r];
      CHECK(md.shard_offsets == Numbers{3 * r, 0});
      CHECK(md.shard_sizes == Numbers{r < 3 ? 3 : 1, 20});
      CHECK(md.placement->str() == "rank:" + std::to_string(r) + "/cpu");
    }
    for (int64_t rank : test_world().owned_ranks()) {
      REQUIRE(st.local_shards(rank).size() == 1);
      CHECK(st.local_tensor(rank).sizes() == c10::IntArrayRef({rank < 3 ? 3 : 1, 20}));
      CHECK(st.local_tensor(rank).device().is_cpu());
      CHECK(st.local_shards(rank)[0].metadata == st.metadata().shards_metadata[rank]);
    }
    if (testing::is_job()) {
      CHECK(&st.local_shards() == &st.local_shards(test_world().owned_ranks()[0]));
    } else {
      CHECK_ERROR(c10::ValueError, "this process owns ranks 0-3: say whose", st.local_shards());
    }
    CHECK_ERROR(c10::ValueError, "local shards of rank 7", st.local_shards(7));
  }
}

TEST_CASE("ST-7 ones, zeros and full") {
  CHECK(holds(ones(chunks(0), {10, 20}, test_world()), at::ones({10, 20})));
  CHECK(holds(zeros(chunks(0), {10, 20}, test_world()), at::zeros({10, 20})));
  CHECK(holds(full(chunks(0), {10, 20}, 1234, test_world(), {.dtype = at::kInt}), at::full({10, 20}, 1234, at::kInt)));
  CHECK(full(chunks(0), {10, 20}, 1234, test_world()).dtype() == at::kFloat);  // not the value's
}

// What each owned rank draws after one seed: in one process one after the other.
template <typename Draw>
void check_draws(const ShardedTensor& st, Draw draw) {
  at::manual_seed(1234);
  for (int64_t rank : test_world().owned_ranks()) CHECK(at::equal(st.local_tensor(rank).detach(), draw(rank)));
}

TEST_CASE("ST-8 random values are those of plain tensors of the shard's size") {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  at::manual_seed(1234);
  const ShardedTensor uniform = rand(chunks(0), {8, 2}, test_world(), {.dtype = at::kDouble});
  check_draws(uniform, [&](int64_t) { return at::rand({2, 2}, options); });
  at::manual_seed(1234);
  const ShardedTensor normal = randn(chunks(0), {8, 2}, test_world(), {.dtype = at::kDouble});
  check_draws(normal, [&](int64_t) { return at::randn({2, 2}, options); });
}

TEST_CASE("ST-9 tensors like another one") {
  const ShardedTensor st = rand(chunks(0), {8, 8}, test_world(), {.dtype = at::kDouble});
  const ShardedTensorOptions as_double{.dtype = at::kDouble};
  CHECK(holds(zeros_like(st, as_double), at::zeros({8, 8}, at::kDouble)));
  CHECK(holds(ones_like(st, as_double), at::ones({8, 8}, at::kDouble)));
  CHECK(holds(full_like(st, 8.8, as_double), at::full({8, 8}, 8.8, at::kDouble)));
  for (int64_t rank : test_world().owned_ranks())
    CHECK(empty_like(st, as_double).local_tensor(rank).sizes() == c10::IntArrayRef({2, 8}));
  const auto options = at::TensorOptions().dtype(at::kDouble);
  at::manual_seed(1234);
  const ShardedTensor uniform = rand_like(st, as_double);
  check_draws(uniform, [&](int64_t) { return at::rand({2, 8}, options); });
  at::manual_seed(1234);
  const ShardedTensor normal = randn_like(st, as_double);
  check_draws(normal, [&](int64_t) { return at::randn({2, 8}, options); });
  CHECK(zeros_like(st).dtype() == at::kFloat);  // dtype from the call alone
  CHECK(zeros_like(st).sharding_spec() == st.sharding_spec());
  CHECK(
      holds(ShardedTensor(at::zeros_like(st.tensor(), options)), at::zeros({8, 8}, at::kDouble)));  // torch's own name
}

TEST_CASE("ST-10 ranks without shards") {
  const ShardedTensor st = ones(chunks(0, {2, 3}), {10, 20}, test_world());
  REQUIRE(st.metadata().shards_metadata.size() == 2);
  for (int64_t i = 0; i < 2; ++i)
    CHECK(st.metadata().shards_metadata[i] == ShardMetadata({5 * i, 0}, {5, 20}, place(i + 2)));
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(st.local_shards(rank).size() == (rank < 2 ? 0 : 1));
    if (rank >= 2) CHECK(st.local_tensor(rank).sizes() == c10::IntArrayRef({5, 20}));
  }
}

TEST_CASE("ST-11 a group of some ranks, whose placements are the world's") {
  const ProcessGroup group(test_world(), {1, 2, 3});
  const ShardedTensor st = ones(chunks(0, {2, 3}), {10, 20}, group);
  for (int64_t i = 0; i < 2; ++i)
    CHECK(st.metadata().shards_metadata[i] == ShardMetadata({5 * i, 0}, {5, 20}, place(i + 2)));
  for (int64_t rank : test_world().owned_ranks()) CHECK(st.local_shards(rank).size() == (rank < 2 ? 0 : 1));
  CHECK_ERROR(c10::ValueError, "Global rank 0 does not exist in input process group: [1, 2, 3]",
              ones(chunks(0, {0, 1}), {10, 20}, group));
}

TEST_CASE("ST-12 several shards on a rank") {
  const ShardedTensor st = ones(chunks(0, {0, 1, 2, 3, 0, 1, 2, 3}), {16, 20}, test_world());
  REQUIRE(st.metadata().shards_metadata.size() == 8);
  for (int64_t i = 0; i < 8; ++i)
    CHECK(st.metadata().shards_metadata[i] == ShardMetadata({2 * i, 0}, {2, 20}, place(i % 4)));
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(st.local_shards(rank).size() == 2);
    CHECK(st.local_shards(rank)[1].metadata.shard_offsets == Numbers{8 + 2 * rank, 0});
  }
  CHECK(holds(st, at::ones({16, 20})));
}

TEST_CASE("ST-13 columns") {
  for (int64_t dim : {1, -1}) {
    const ShardedTensor st = ones(chunks(dim), {10, 32}, test_world());
    for (int64_t i = 0; i < 4; ++i)
      CHECK(st.metadata().shards_metadata[i] == ShardMetadata({0, 8 * i}, {10, 8}, place(i)));
    CHECK(holds(st, at::ones({10, 32})));
  }
}

TEST_CASE("ST-14 fewer rows than ranks, and offsets past the end (trap T6)") {
  const ShardedTensor st = ones(chunks(0), {2, 20}, test_world());
  for (int64_t r = 0; r < 4; ++r)
    CHECK(st.metadata().shards_metadata[r] == ShardMetadata({r, 0}, {r < 2 ? 1 : 0, 20}, place(r)));
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(st.local_shards(rank).size() == 1);
    CHECK(st.local_tensor(rank).numel() == (rank < 2 ? 20 : 0));
  }
}

TEST_CASE("ST-15 sizes, dims and out-of-range indices") {
  const ShardedTensor st = empty(chunks(0), {10, 20}, test_world());
  CHECK((st.size(0) == 10 && st.size(1) == 20 && st.size(-1) == 20 && st.size(-2) == 10));
  CHECK(st.dim() == 2);
  CHECK(st.numel() == 200);
  for (int64_t d : {-3, 2}) {
    CHECK_ERROR(c10::IndexError,
                "Dimension out of range (expected to be in range of [-2, 1], but got " + std::to_string(d) + ")",
                st.size(d));
  }
}

TEST_CASE("ST-16 tensors that cannot be sharded") {
  CHECK_ERROR(c10::ValueError, "Global rank 5 does not exist in input process group: [0, 1, 2, 3]",
              empty(chunks(0, {0, 5}), {10, 20}, test_world()));
  CHECK_ERROR(c10::ValueError, "Only torch.strided layout is currently supported",
              empty(chunks(0), {10, 20}, test_world(), {.layout = c10::kSparse}));
  CHECK_ERROR(c10::ValueError, "Only torch.contiguous_format memory_format is currently supported",
              empty(chunks(0), {10, 20}, test_world(), {.memory_format = c10::MemoryFormat::ChannelsLast}));
  CHECK_ERROR(c10::Error, "RPC framework needs to be initialized",
              empty(ChunkShardingSpec(0, {"worker0/cpu"}), {10, 20}, test_world()));
  CHECK_ERROR(c10::Error, "RPC Framework needs to be initialized",
              empty(chunks(0), {10, 20}, test_world(), {.init_rrefs = true}));
  CHECK_ERROR(c10::ValueError, "names no rank", empty(ChunkShardingSpec(0, {"cpu"}), {10, 20}, test_world()));
  const ShardedTensor st = empty(chunks(0), {10, 20}, test_world());
  const std::string text = error_of<c10::Error>([&] { at::add(st.tensor(), at::ones({10, 20})); });
  CHECK_THAT(text, Catch::Contains("torch function 'add'") && Catch::EndsWith("not supported for ShardedTensor!"));
  CHECK_ERROR(c10::Error, "not supported for ShardedTensor!", st.tensor().sum());
  CHECK_ERROR(c10::Error, "not supported for ShardedTensor!", at::cat({at::ones({10, 20}), st.tensor()}));
  CHECK_ERROR(c10::TypeError, "Expected a ShardedTensor", ShardedTensor(at::ones({2})));
  CHECK_ERROR(c10::TypeError, "Expected a ShardedTensor", ShardedTensor{at::Tensor()});
}

TEST_CASE("ST-17 lists of shards") {
  CHECK(holds(ones(grid(), {10, 10}, test_world()), at::ones({10, 10})));
  const EnumerableShardingSpec uneven({ShardMetadata({0, 0}, {2, 4}, place(0)), ShardMetadata({0, 4}, {4, 2}, place(1)),
                                       ShardMetadata({2, 0}, {4, 4}, place(2)),
                                       ShardMetadata({4, 4}, {2, 2}, place(3))});
  const ShardedTensor st = ones(uneven, {6, 6}, test_world());
  CHECK(st.metadata().shards_metadata == uneven.shards());
  CHECK(holds(st, at::ones({6, 6})));
  const auto halves = [](int64_t a, int64_t b) {
    return EnumerableShardingSpec({ShardMetadata({0, 0}, {5, 5}, place(a)), ShardMetadata({5, 0}, {5, 5}, place(b))});
  };
  const ShardedTensor partial = ones(halves(0, 1), {10, 5}, test_world());
  const ShardedTensor in_group = ones(halves(1, 3), {10, 5}, ProcessGroup(test_world(), {1, 2, 3}));
  for (int64_t rank : test_world().owned_ranks()) {
    CHECK(partial.local_shards(rank).size() == (rank < 2 ? 1 : 0));
    CHECK(in_group.local_shards(rank).size() == static_cast<size_t>(rank % 2));
  }
  CHECK(holds(partial, at::ones({10, 5})));
  CHECK(holds(in_group, at::ones({10, 5})));
  const ShardedTensor several = ones(grid({0, 1, 0, 1}), {10, 10}, test_world());
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(several.local_shards(rank).size() == (rank < 2 ? 2 : 0));
    for (int64_t k = 0; k < 2 && rank < 2; ++k)
      CHECK(several.local_shards(rank)[k].metadata.shard_offsets == Numbers{5 * k, 5 * rank});
  }
  CHECK_ERROR(c10::ValueError, "does not match tensor volume", ones(halves(0, 1), {10, 6}, test_world()));
}

TEST_CASE("ST-18 the only local tensor") {
  const ShardedTensor one = rand(chunks(0), {24, 12}, test_world());
  for (int64_t rank : test_world().owned_ranks()) {
    CHECK(one.local_tensor(rank).sizes() == c10::IntArrayRef({6, 12}));
    CHECK(at::equal(one.local_tensor(rank), one.local_tensor(rank)));
  }
  const ShardedTensor many = rand(chunks(0, {0, 0, 1, 1, 1, 2, 2, 2, 3, 3}), {24, 12}, test_world());
  for (int64_t rank : test_world().owned_ranks())
    CHECK_ERROR(c10::NotImplementedError, "Only single local shard is supported.", many.local_tensor(rank));
}

TEST_CASE("ST-19 device, pinning and text") {
  const ShardedTensor st = empty(chunks(0), {10, 20}, test_world());
  CHECK(st.device() == c10::Device("cpu"));
  CHECK(!st.is_pinned());
  CHECK_THAT(st.to_string(), Catch::StartsWith("ShardedTensor(ShardedTensorMetadata(shards_metadata=[ShardMetadata("
                                               "shard_offsets=[0, 0], shard_sizes=[3, 20], placement=rank:0/cpu), ") &&
                                 Catch::Contains("size=[10, 20]"));
  CHECK_THROWS_WITH(st.tensor().data_ptr(), Catch::Contains("ShardedTensor"));
}

}  // namespace
}  // namespace dtensor::sharded
