// from_local(run_check): compares the arguments of all ranks. Also run with several processes (tests/processes): every
// rank must then get an error that one process has.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

namespace dtensor {
namespace {

// Ranks in processes of their own, 0 if all are in this one.
int64_t processes() {
  static const int64_t n = std::getenv("WORLD_SIZE") == nullptr ? 0 : std::atoll(std::getenv("WORLD_SIZE"));
  return n;
}

const World& world() {
  static const World w = processes() > 0 ? World::from_env() : World::local(4);
  return w;
}
int64_t ranks() { return world().size(); }
DeviceMesh mesh_of_ranks() { return DeviceMesh(world(), {ranks()}, {"tp"}); }

using PartOf = std::function<at::Tensor(int64_t rank)>;

// For the parts that this process owns.
at::Tensor pass(const DeviceMesh& mesh, const Placements& placements, const PartOf& part,
                FromLocalOptions options = {}) {
  options.run_check = true;
  std::vector<at::Tensor> locals;
  for (int64_t rank : mesh.local_ranks()) locals.push_back(part(rank));
  return from_local(locals, mesh, placements, options);
}

std::string error_of(const DeviceMesh& mesh, const Placements& placements, const PartOf& part,
                     const FromLocalOptions& options = {}) {
  try {
    pass(mesh, placements, part, options);
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "";
}

int64_t exchanges() { return processes() > 0 ? 1 : 0; }

TEST_CASE("run_check: valid parts cost one exchange between processes, and none within one") {
  CommDebugMode comm;
  const auto x = pass(mesh_of_ranks(), {Shard(0)}, [](int64_t rank) {
    return at::full({2, 3}, static_cast<double>(rank));
  });
  CHECK(comm.total() == exchanges());
  CHECK(comm.count(Collective::kAllGather) == exchanges());
  CHECK(x.sizes() == at::IntArrayRef({2 * ranks(), 3}));
  const auto r = pass(mesh_of_ranks(), {Replicate()}, [](int64_t) { return at::arange(5); });
  CHECK(r.sizes() == at::IntArrayRef({5}));
  const auto p =
      pass(mesh_of_ranks(), {Partial()}, [](int64_t rank) { return at::full({2}, static_cast<double>(rank)); });
  CHECK(p.sizes() == at::IntArrayRef({2}));
  const auto scalar = pass(mesh_of_ranks(), {Replicate()}, [](int64_t) { return at::full({}, 3.0); });
  CHECK(scalar.dim() == 0);
}

TEST_CASE("run_check: the global shape is that of all parts, also if uneven or empty") {
  const int64_t n = ranks(), rows = 2 * n - 1;  // 2, 2, ..., 1
  const auto size = [&](int64_t rank) { return rank == n - 1 ? 1 : 2; };
  const auto whole = at::arange(3 * rows, at::kFloat).view({rows, 3});
  const auto x =
      pass(mesh_of_ranks(), {Shard(0)}, [&](int64_t rank) { return whole.narrow(0, 2 * rank, size(rank)).clone(); });
  CHECK(x.sizes() == at::IntArrayRef({rows, 3}));
  CHECK(at::equal(full_tensor(x), whole));
  const auto one = pass(mesh_of_ranks(), {Shard(1)}, [&](int64_t rank) { return at::ones({2, rank == 0 ? 1 : 0}); });
  CHECK(one.sizes() == at::IntArrayRef({2, 1}));
  CHECK(at::equal(full_tensor(one), at::ones({2, 1})));
}

TEST_CASE("run_check: gradients equal those without run_check") {
  std::vector<at::Tensor> locals;
  for (int64_t rank : mesh_of_ranks().local_ranks()) locals.push_back(at::full({1, 2}, rank + 1.0).requires_grad_());
  FromLocalOptions options;
  options.run_check = true;
  const auto x = from_local(locals, mesh_of_ranks(), {Shard(0)}, options);
  (full_tensor(x) * full_tensor(x)).sum().backward();
  for (const auto& local : locals) CHECK(at::equal(local.grad(), 2 * local.detach()));
}

TEST_CASE("run_check: parts that do not follow the chunk rule are an error") {
  const int64_t last = ranks() - 1;
  // 1 row on rank 0, 2 on the others.
  const std::string error = error_of(mesh_of_ranks(), {Shard(0)}, [](int64_t rank) {
    return at::ones({rank == 0 ? 1 : 2, 3});
  });
  CHECK_THAT(error, StartsWith(absl::StrCat("[from_local] run_check: the local tensors do not make f32[", 2 * last + 1,
                                            ", 3](S(0)) @ mesh(tp=", ranks(),
                                            "): by the chunk rule rank 0 should have [2, 3] and has [1, 3]")));
  CHECK_THAT(error, Contains(absl::StrCat(", rank ", last, " should have [1, 3] and has [2, 3]. Pass such parts")));
  if (ranks() > 2) CHECK_THAT(error, !Contains("rank 1 should have"));

  FromLocalOptions options;
  options.shape = {2 * ranks(), 3};
  CHECK_THAT(
      error_of(
          mesh_of_ranks(), {Shard(0)},
          [&](int64_t rank) {
            return at::ones({rank == last ? 1 : 2, 3});
          },
          options),
      Contains(absl::StrCat("by the chunk rule rank ", last,
                            " should have [2, 3] and has [1, 3]. Pass such parts, or the ", "true global shape")));
  // A dim that is not sharded.
  CHECK_THAT(error_of(mesh_of_ranks(), {Shard(0)},
                      [&](int64_t rank) {
                        return at::ones({2, rank == last ? 4 : 3});
                      }),
             Contains(absl::StrCat("rank ", last, " should have [2, 3] and has [2, 4]")));
  CHECK_THAT(error_of(mesh_of_ranks(), {Partial()}, [&](int64_t rank) { return at::ones({rank == last ? 4 : 3}); }),
             Contains(absl::StrCat("f32[3](P(sum)) @ mesh(tp=", ranks(), "): by the chunk rule rank ", last,
                                   " should have [3] and has [4]")));
}

TEST_CASE("run_check: different dtypes or numbers of dims are an error") {
  const int64_t last = ranks() - 1;
  CHECK_THAT(error_of(mesh_of_ranks(), {Shard(0)},
                      [&](int64_t rank) { return at::ones({2}, rank == last ? at::kDouble : at::kFloat); }),
             EndsWith(absl::StrCat("local tensors must have one dtype: rank 0 has Float, rank ", last, " has Double")));
  CHECK_THAT(
      error_of(mesh_of_ranks(), {Shard(0)},
               [&](int64_t rank) {
                 return rank == last ? at::ones({2}) : at::ones({2, 1});
               }),
      EndsWith(absl::StrCat("local tensors must have as many dims: rank 0 has [2, 1], rank ", last, " has [2]")));
}

TEST_CASE("run_check: replicas are compared bit for bit") {
  const int64_t last = ranks() - 1;
  const auto replicas = [&](double other) {
    return error_of(mesh_of_ranks(), {Replicate()}, [=](int64_t rank) {
      auto t = at::zeros({3, 5});
      t[2][4] = rank == last ? other : 0.0;
      return t;
    });
  };
  CHECK(replicas(0.0) == "");
  const std::string differ =
      absl::StrCat("run_check: mesh dim 'tp' is Replicate, but ranks 0 and ", last, " hold different values. ");
  CHECK_THAT(replicas(1e-30), Contains(differ));
  CHECK_THAT(replicas(-0.0), Contains(differ));
  // nan counts as a value, and only values count, not strides.
  CHECK(error_of(mesh_of_ranks(), {Replicate()}, [&](int64_t rank) {
          const auto t = at::full({2, 3}, std::numeric_limits<double>::quiet_NaN());
          return rank == last ? t.t().contiguous().t() : t;
        }) == "");
  for (auto dtype : {at::kByte, at::kBool, at::kHalf, at::kComplexDouble}) {  // also with odd numbers of bytes
    CHECK(error_of(mesh_of_ranks(), {Replicate()}, [&](int64_t) { return at::ones({7}, dtype); }) == "");
    CHECK_THAT(error_of(mesh_of_ranks(), {Replicate()},
                        [&](int64_t rank) { return rank == last ? at::zeros({7}, dtype) : at::ones({7}, dtype); }),
               Contains(differ));
  }
}

TEST_CASE("run_check: an error of one rank is thrown on all") {
  const int64_t last = ranks() - 1;
  CHECK_THAT(
      error_of(mesh_of_ranks(), {Shard(0)}, [&](int64_t rank) { return rank == last ? at::Tensor() : at::ones({2}); }),
      Contains(absl::StrCat("the local tensor of rank ", last, " is undefined")));
  const auto distributed = pass(mesh_of_ranks(), {Replicate()}, [](int64_t) { return at::ones({2}); });
  CHECK_THAT(
      error_of(mesh_of_ranks(), {Shard(0)}, [&](int64_t rank) { return rank == last ? distributed : at::ones({2}); }),
      Contains(absl::StrCat("the local tensor of rank ", last, " is distributed already; use redistribute")));
}

TEST_CASE("run_check: on two mesh dims") {
  if (ranks() != 4) return;
  const DeviceMesh mesh(world(), {2, 2}, {"dp", "tp"});
  const auto part = [](int64_t rank) { return at::full({rank % 2 == 0 ? 2 : 1, 3}, 5.0); };
  CHECK(pass(mesh, {Replicate(), Shard(0)}, part).sizes() == at::IntArrayRef({3, 3}));
  CHECK(pass(mesh, {Shard(1), Shard(0)}, part).sizes() == at::IntArrayRef({3, 6}));
  // Ranks 1 and 3 are replicas.
  CHECK_THAT(
      error_of(mesh, {Replicate(), Shard(0)}, [&](int64_t rank) { return rank == 3 ? part(rank) * 2 : part(rank); }),
      Contains("mesh dim 'dp' is Replicate, but ranks 1 and 3 hold different values"));
  CHECK_THAT(error_of(mesh, {Replicate(), Shard(0)}, [&](int64_t rank) { return at::ones({rank == 2 ? 3 : 2}); }),
             Contains("f32[4](RS(0)) @ mesh(dp=2, tp=2): by the chunk rule rank 2 should have [2] and has [3]"));
  // Every rank's own submesh: as many tensors as there are copies.
  const auto own = pass(mesh["tp"], {Shard(0)}, part);
  CHECK(own.sizes() == at::IntArrayRef({3, 3}));
}

TEST_CASE("run_check: processes with different placements get an error") {
  if (processes() == 0) return;  // within one process there is one call
  const int64_t last = ranks() - 1, rank = world().owned_ranks()[0];
  const auto part = [](int64_t) { return at::ones({2, 2}); };
  CHECK_THAT(
      error_of(mesh_of_ranks(), {rank == last ? Shard(1) : Shard(0)}, part),
      EndsWith(absl::StrCat("all ranks must pass the same placements: rank 0 has S(0), rank ", last, " has S(1)")));
  FromLocalOptions options;
  if (rank != last) options.shape = {2 * ranks(), 2};
  CHECK_THAT(error_of(mesh_of_ranks(), {Shard(0)}, part, options),
             EndsWith(absl::StrCat("the same global shape, or none: rank 0 has [", 2 * ranks(), ", 2], rank ", last,
                                   " has none")));
  // Invalid placements: an error of this process only.
  CHECK_THAT(error_of(mesh_of_ranks(), {rank == last ? Shard(2) : Shard(0)}, part),
             Contains(absl::StrCat("[from_local] run_check: on rank ", last,
                                   ": S(2) over mesh dim 0: a tensor of 2 dims has no dim 2")));
  // After all these errors the job continues.
  CHECK(pass(mesh_of_ranks(), {Shard(0)}, part).sizes() == at::IntArrayRef({2 * ranks(), 2}));
}

TEST_CASE("run_check: a world in which no other rank has data") {
  if (processes() > 0) return;
  FromLocalOptions options;
  options.run_check = true;
  options.shape = {4, 2};
  const DeviceMesh nobody(World::abstract(4), {4}, {"tp"});
  CHECK(from_local({}, nobody, {Shard(0)}, options).sizes() == at::IntArrayRef({4, 2}));
  const DeviceMesh alone(World::fake(4, 1), {4}, {"tp"});
  CHECK(from_local({at::ones({1, 2})}, alone, {Shard(0)}, options).sizes() == at::IntArrayRef({4, 2}));
  CHECK_THROWS_WITH(from_local({at::ones({2, 2})}, alone, {Shard(0)}, options),
                    Contains("rank 1 should have [1, 2] and has [2, 2]"));
  options.shape.reset();
  CHECK(from_local({at::ones({2, 3})}, alone, {Shard(0)}, options).sizes() == at::IntArrayRef({8, 3}));
}

}  // namespace
}  // namespace dtensor
