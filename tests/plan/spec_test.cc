#include "plan/spec.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <sstream>
#include <thread>

#include "plan/sized_impl.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

DeviceMesh mesh_2x2() { return DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}); }

TEST_CASE("tensors take sizes, strides and memory formats from their spec") {
  const std::vector<std::pair<Shape, Shape>> all = {
      {{}, {}},
      {{3}, {1}},
      {{3}, {2}},
      {{4, 2}, {2, 1}},
      {{4, 2}, {1, 4}},
      {{4, 2}, {0, 1}},
      {{4, 0}, {1, 1}},
      {{1, 2}, {7, 1}},
      {{2, 3, 4}, {1, 8, 2}},
      {{2, 3}, {4, 1}},
      {{2, 3, 4, 5}, {60, 20, 5, 1}},
      {{2, 3, 4, 5}, {60, 1, 15, 3}},
      {{2, 3, 4, 5}, {120, 2, 30, 6}},
      {{2, 3, 4, 5, 6}, {360, 1, 90, 18, 3}},
      {{2, 3, 4, 5, 6}, {720, 2, 180, 36, 6}},
      {{2, 1, 2, 1, 2, 2}, {8, 8, 4, 4, 2, 1}},
  };
  const DeviceMesh mesh = mesh_2x2();
  for (const auto& [sizes, strides] : all) {
    const SpecPtr spec = Spec::get(mesh, {Replicate(), Replicate()}, TensorMeta{sizes, strides, at::kFloat});
    const at::Tensor usual = at::empty_strided({sizes.data(), sizes.size()}, {strides.data(), strides.size()});
    auto impl = c10::make_intrusive<SizedImpl>(usual.key_set(), usual.dtype(), usual.device());
    impl->copy_first_sizes(spec->sized_impl());
    const at::Tensor copy(std::move(impl));
    CAPTURE(usual.sizes(), usual.strides());
    CHECK(copy.sizes() == usual.sizes());
    CHECK(copy.strides() == usual.strides());
    CHECK(copy.numel() == usual.numel());
    CHECK(copy.is_non_overlapping_and_dense() == usual.is_non_overlapping_and_dense());
    CHECK(copy.suggest_memory_format() == usual.suggest_memory_format());
    for (const auto format :
         {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
      CHECK(copy.is_contiguous(format) == usual.is_contiguous(format));
    }
  }
}

TEST_CASE("equal specs are one object while it is alive") {
  const size_t alive = Spec::num_alive();
  const DeviceMesh mesh = mesh_2x2();
  SpecPtr a = Spec::get(mesh, {Replicate(), Shard(0)}, {10, 8}, at::kFloat);
  CHECK(a == Spec::get(mesh, {Replicate(), Shard(-2)}, {10, 8}, at::kFloat));
  CHECK(a == Spec::get(mesh, {Replicate(), Shard(0)}, TensorMeta{{10, 8}, {8, 1}, at::kFloat}));
  CHECK(Spec::num_alive() == alive + 1);

  const std::vector<SpecPtr> others = {
      Spec::get(mesh, {Replicate(), Shard(1)}, {10, 8}, at::kFloat),
      Spec::get(mesh, {Replicate(), Shard(0)}, {10, 9}, at::kFloat),
      Spec::get(mesh, {Replicate(), Shard(0)}, {10, 8}, at::kDouble),
      Spec::get(mesh, {Replicate(), Shard(0)}, TensorMeta{{10, 8}, {1, 10}, at::kFloat}),
      Spec::get(mesh_2x2(), {Replicate(), Shard(0)}, {10, 8}, at::kFloat),
  };
  for (const SpecPtr& other : others) {
    CHECK(other != a);
    CHECK(other->id() != a->id());
  }
  CHECK(Spec::num_alive() == alive + 6);
}

TEST_CASE("an unused spec is freed, and its id is not used again") {
  const size_t alive = Spec::num_alive();
  const DeviceMesh mesh = mesh_2x2();
  const uint64_t id = Spec::get(mesh, {Shard(0), Shard(0)}, {4}, at::kFloat)->id();
  CHECK(Spec::num_alive() == alive);
  CHECK(Spec::get(mesh, {Shard(0), Shard(0)}, {4}, at::kFloat)->id() != id);
}

TEST_CASE("a spec keeps its mesh and world alive") {
  SpecPtr spec = Spec::get(mesh_2x2(), {Shard(0), Replicate()}, {4, 4}, at::kFloat);
  CHECK(spec->mesh().world().size() == 4);
  CHECK(spec->local_shape(3) == Shape{2, 4});
}

TEST_CASE("specs are made and dropped by many threads at once") {
  const size_t alive = Spec::num_alive();
  const DeviceMesh mesh = mesh_2x2();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        SpecPtr a = Spec::get(mesh, {Replicate(), Shard(0)}, {i % 3, 8}, at::kFloat);
        SpecPtr b = Spec::get(mesh, {Replicate(), Shard(0)}, {i % 3, 8}, at::kFloat);
        if (a != b || a->sizes()[0] != i % 3) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(Spec::num_alive() == alive);
}

TEST_CASE("a spec prints as dtype, shape, placements and mesh") {
  SpecPtr spec = Spec::get(mesh_2x2(), {Replicate(), Shard(0)}, {10, 8}, at::kFloat);
  CHECK(spec->to_short_string() == "f32[10, 8](RS(0))");
  CHECK(spec->to_string() == "f32[10, 8](RS(0)) @ mesh(dp=2, tp=2)");
  std::ostringstream text;
  text << *spec->with_placements({Partial(), Replicate()});
  CHECK(text.str() == "f32[10, 8](P(sum)R) @ mesh(dp=2, tp=2)");
  CHECK(Spec::get(mesh_2x2(), {Replicate(), Replicate()}, {}, at::kBool)->to_short_string() == "b8[](RR)");
  CHECK(short_name(at::kBFloat16) == "bf16");
  CHECK(short_name(at::kLong) == "i64");
}

TEST_CASE("a spec has the part of every rank") {
  SpecPtr spec = Spec::get(mesh_2x2(), {Shard(0), Shard(0)}, {5, 3}, at::kDouble);
  const std::vector<Shape> shapes = {{2, 3}, {1, 3}, {1, 3}, {1, 3}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(spec->local_shape(rank) == shapes[rank]);
    CHECK(spec->local_layout(rank).sizes() == shapes[rank]);
    CHECK(spec->layout_of_rank(rank).offsets == Shape{rank == 0 ? 0 : rank + 1, 0});
  }
  CHECK(spec->max_local_bytes() == 2 * 3 * 8);
  CHECK(spec->meta().bytes() == 5 * 3 * 8);
  CHECK_FALSE(spec->is_replicated());
  CHECK_FALSE(spec->has_partial());
  CHECK(spec->with_placements({Replicate(), Replicate()})->is_replicated());
  CHECK(spec->with_placements({Replicate(), Partial()})->has_partial());
}

TEST_CASE("strides of a contiguous tensor") {
  CHECK(row_major_strides({}) == Shape{});
  CHECK(row_major_strides({2, 3, 4}) == Shape{12, 4, 1});
  CHECK(row_major_strides({2, 0, 4}) == Shape{4, 4, 1});  // as at::empty
}

TEST_CASE("an invalid spec is an error with the reason") {
  const DeviceMesh mesh = mesh_2x2();
  CHECK_THROWS_WITH(Spec::get(mesh, {Shard(0)}, {4}, at::kFloat),
                    Contains("1 placement") && Contains("S(0)") && Contains("mesh(dp=2, tp=2)"));
  CHECK_THROWS_WITH(Spec::get(mesh, {Shard(0), Shard(2)}, {4, 5}, at::kFloat),
                    Contains("S(0)S(2)") && Contains("[4, 5]"));
  CHECK_THROWS_AS(Spec::get(mesh, {Shard(0), Shard(-3)}, {4, 5}, at::kFloat), c10::Error);
  CHECK_THROWS_AS(Spec::get(mesh, {Partial(ReduceOp::kMax), Partial()}, {4, 5}, at::kFloat), c10::Error);
  CHECK_THROWS_AS(Spec::get(mesh, {Shard(0), Replicate()}, {}, at::kFloat), c10::Error);
  CHECK_THROWS_AS(Spec::get(DeviceMesh(), {Shard(0)}, {4}, at::kFloat), c10::Error);
}

}  // namespace
}  // namespace dtensor
