// What the ranks of a job make of one that goes wrong, where every rank is a thread of this process. faults_test.sh has
// what only a process of its own can do: to be killed, stopped, to end.
#include "tests/testing/faulty_communicator.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "tests/processes/fault_steps.h"
#include "tests/processes/thread_job.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor::testing {
using namespace internal;

namespace {

class DebugLevelOf {
 public:
  explicit DebugLevelOf(const char* level) {
    if (const char* before = std::getenv("DTENSOR_DEBUG")) before_ = before;
    ::setenv("DTENSOR_DEBUG", level, 1);
  }
  ~DebugLevelOf() {
    if (before_) ::setenv("DTENSOR_DEBUG", before_->c_str(), 1);
    if (!before_) ::unsetenv("DTENSOR_DEBUG");
  }

 private:
  std::optional<std::string> before_;
};

// The sum over all ranks of what each passes.
double all_sum(const DeviceMesh& mesh, double own = 1) {
  const CommCall call{&mesh.get_group(0), mesh.local_ranks(), {}, {}};
  return mesh.world()
      .communicator()
      .all_reduce(call, {at::full({}, own, at::kDouble)}, ReduceOp::kSum)[0]
      .item<double>();
}

bool all_steps(const World& world, int64_t steps) {
  const FaultSteps job(world);
  bool right = true;
  for (int64_t k = 1; k <= steps; ++k) right &= job.run(k);
  return right;
}

// Which collective FaultSteps makes as its k-th call.
std::string name_of(int64_t k) {
  const char* names[] = {"all_to_all", "all_reduce", "all_gather", "reduce_scatter"};
  return names[k % 4];
}

TEST_CASE("faults: none, and a fault that never occurs") {
  for (const Fault& fault : {Fault{}, Fault{Fault::Kind::kThrow, 100}}) {
    const Outcome o = run_job(1, fault, [](const World& world) { return all_steps(world, 8); });
    CHECK(o.errors == std::vector<std::string>(kRanks));
    CHECK(o.right == std::vector<bool>(kRanks, true));
    CHECK(o.fired == 0);
  }
}

TEST_CASE("faults: another shape, dtype, collective or none, at every collective and rank, is detected at once") {
  const DebugLevelOf level(GENERATE("info", "detail"));
  for (const char* word : {"shape", "dtype", "collective", "missing"}) {
    for (int64_t call = 5; call <= 8; ++call) {
      const int64_t culprit = call % kRanks;
      CAPTURE(std::getenv("DTENSOR_DEBUG"), word, call, culprit);
      const Outcome o =
          run_job(culprit, {*fault_kind(word), call}, [](const World& world) { return all_steps(world, 9); });
      CHECK(o.fired == 1);
      CHECK(o.took < kAtOnce);
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        CAPTURE(rank);
        CHECK(o.errors[rank] == o.errors[0]);
      }
      CHECK_THAT(o.errors[0],
                 Contains(absl::StrCat("rank ", culprit, " failed: ranks do not make the same calls over tp: ")) &&
                     Contains(absl::StrCat("rank ", (culprit + 1) % kRanks, " is about to make call ", call, ": ",
                                           name_of(call), " over tp")));
      // What the culprit did instead.
      std::string instead = absl::StrCat("rank ", culprit, " is about to make call ", call, ": ");
      if (word == std::string("missing")) absl::StrAppend(&instead, name_of(call + 1));
      if (word == std::string("collective")) absl::StrAppend(&instead, call % 4 == 1 ? "all_gather" : "all_reduce");
      if (word == std::string("shape") || word == std::string("dtype")) absl::StrAppend(&instead, name_of(call));
      CHECK_THAT(o.errors[0], Contains(instead));
      if (word == std::string("dtype")) CHECK_THAT(o.errors[0], Contains(": i32["));
    }
  }
}

TEST_CASE("faults: at a barrier, and with tensors that have no rows") {
  const DebugLevelOf level(GENERATE("info", "detail"));
  // Calls 1 to 3: several tensors in one all_reduce, one of them a scalar; a barrier; a scalar that one rank sends to
  // all.
  const auto body = [](const World& world) {
    const DeviceMesh mesh(world, {kRanks}, {"tp"});
    const CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), {}, {}};
    const auto own = at::full({}, static_cast<double>(world.owned_ranks()[0]), at::kDouble);
    const auto sums =
        world.communicator().all_reduce_many(call, {{own, at::full({2, 3}, 1.0, at::kDouble)}}, ReduceOp::kSum);
    world.communicator().barrier(call);
    const auto last = world.communicator().broadcast(call, {own}, kRanks - 1);
    return sums[0][0].item<double>() == 3 && at::equal(sums[0][1], at::full({2, 3}, 3.0, at::kDouble)) &&
           last[0].item<double>() == 2;
  };
  const Outcome good = run_job(1, {}, body);
  CHECK(good.errors == std::vector<std::string>(kRanks));
  CHECK(good.right == std::vector<bool>(kRanks, true));
  const struct {
    const char* word;
    int64_t call;
    const char* instead;  // of the culprit
  } rows[] = {
      {"shape", 1, "call 1: all_reduce over tp: f64[2]"}, {"dtype", 1, "call 1: all_reduce over tp: i64[]"},
      {"collective", 1, "call 1: all_gather over tp"},    {"missing", 1, "call 1: barrier over tp"},
      {"shape", 2, "call 2: all_reduce over tp"},         {"dtype", 2, "call 2: all_reduce over tp"},
      {"collective", 2, "call 2: all_reduce over tp"},    {"missing", 2, "call 2: broadcast over tp"},
      {"shape", 3, "call 3: broadcast over tp: f64[2]"},  {"dtype", 3, "call 3: broadcast over tp: i64[]"},
      {"collective", 3, "call 3: all_reduce over tp"},
  };
  for (const auto& row : rows) {
    for (int64_t culprit : {int64_t{0}, kRanks - 1}) {  // the last one sends the broadcast
      CAPTURE(row.word, row.call, culprit);
      const Outcome o = run_job(culprit, {*fault_kind(row.word), row.call}, body);
      CHECK(o.fired == 1);
      CHECK(o.took < kAtOnce);
      for (const auto& error : o.errors) {
        CHECK_THAT(error, Contains(absl::StrCat("rank ", culprit, " failed: ranks do not make the same calls")) &&
                              Contains(absl::StrCat("rank ", culprit, " is about to make ", row.instead)));
      }
    }
  }
}

// Large parts travel behind the comparison, small ones with it.
TEST_CASE("faults: mismatched parts of tensors of one layout are detected before they are sent") {
  for (const int64_t rows : {1, 5000}) {
    for (const int64_t culprit : {int64_t{0}, kRanks - 1}) {
      CAPTURE(rows, culprit);
      const Outcome o = run_job(-1, {}, [&](const World& world) {
        const DeviceMesh mesh(world, {kRanks}, {"tp"});
        const int64_t rank = world.owned_ranks()[0];
        FromLocalOptions options;  // all claim the same layout, of which one has another idea
        options.shape = {kRanks * rows, 4};
        const auto x = from_local({at::full({rows, 4}, 1.0)}, mesh, {Shard(0)}, options);
        full_tensor(x);
        const CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), {}, {}};
        CommCall own = call;
        own.receive_shapes = {{{rows}, {rows}, {rows}}};
        world.communicator().all_gather(own, {at::full({rank == culprit ? 2 * rows : rows}, 1.0)});
        return true;
      });
      CHECK(o.took < kAtOnce);
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        const std::string& error = o.errors[rank];
        if (rank == culprit && rows == 1 && error.empty()) continue;  // it got all that it expects, and may have left
        CHECK_THAT(error, Contains(absl::StrCat("rank ", culprit, " failed: ")) &&
                              Contains(absl::StrCat("rank ", culprit, " has ", 8 * rows, " B for rank ")) &&
                              Contains(absl::StrCat("which expects ", 4 * rows, " B, in call 2: all_gather over tp")));
      }
    }
  }
}

TEST_CASE("faults: other elements of a tensor of the same layout are detected before they are sent") {
  // Of each, the bytes and the layouts are those of the others.
  const std::vector<std::pair<std::string, std::function<void(const DeviceMesh&, bool)>>> cases = {
      {"halos of S(0): of dim 0 rank 0 needs 2:5, rank 2 8:9",
       [](const DeviceMesh& mesh, bool other) {
         const auto x = from_local({at::full({3, 9}, 1.0)}, mesh, {Shard(0)});
         x.slice(0, other ? 2 : 3).add(1);
       }},
      {"at element 2 with strides [2, 1]",
       [](const DeviceMesh& mesh, bool other) {
         const auto x = from_local({at::full({2, 2}, 1.0)}, mesh, {Shard(0)});
         x.slice(0, other ? 1 : 2, other ? 5 : 6).copy_(distribute_tensor(at::full({4, 2}, 2.0), mesh, {Shard(0)}));
       }},
      {"f32[6, 2](R) -> (R)",
       [](const DeviceMesh& mesh, bool other) {
         distribute_tensor(at::full({other ? 6 : 4, other ? 2 : 3}, 1.0), mesh, {Replicate()});
       }},
  };
  for (const auto& [text, make] : cases) {
    const Outcome o = run_job(-1, {}, [&, &make = make](const World& world) {
      make(DeviceMesh(world, {kRanks}, {"tp"}), world.owned_ranks()[0] == 1);
      return true;
    });
    CHECK(o.took < kAtOnce);
    for (const auto& error : o.errors) {
      CHECK_THAT(error, Contains("rank 1 failed: ranks do not make the same calls over tp") && Contains(text));
    }
  }
}

TEST_CASE("faults: members with a group in another order get an error at once") {
  const Outcome o = run_job(-1, {}, [](const World& world) {
    const int64_t rank = world.owned_ranks()[0];
    const DeviceMesh mesh(world, {kRanks}, {"tp"},
                          rank == 1 ? std::vector<int64_t>{0, 2, 1} : std::vector<int64_t>{0, 1, 2});
    return all_sum(mesh) == 3;
  });
  CHECK(o.took < kAtOnce);
  for (const auto& error : o.errors) {
    CHECK(error ==
          "rank 1 failed: ranks do not have the same mesh. The group tp is, in order, ranks 0,1,2 on rank 0; ranks "
          "0,2,1 on rank 1; ranks 0,1,2 on rank 2");
  }
}

// Two threads of each rank, which take turns in another order on every rank.
TEST_CASE("meshes over the same ranks do not get each other's data") {
  const Outcome o = run_job(-1, {}, [](const World& world) {
    const int64_t rank = world.owned_ranks()[0];
    std::atomic<bool> right{true};
    const auto sums = [&](const char* name, double own, int64_t pause) {
      try {
        const DeviceMesh mesh(world, {kRanks}, {name});
        for (int k = 0; k < 20; ++k) {
          std::this_thread::sleep_for(milliseconds(pause));
          if (all_sum(mesh, own) != kRanks * own) right = false;
        }
      } catch (const std::exception&) {
        right = false;
      }
    };
    std::thread other([&] { sums("a", 1, rank); });
    sums("b", 10, 2 - rank);
    other.join();
    return right.load();
  });
  CHECK(o.errors == std::vector<std::string>(kRanks));
  CHECK(o.right == std::vector<bool>(kRanks, true));
}

TEST_CASE("faults: a rank that is gone while a group is made is an error before the deadline") {
  const Outcome o = run_job(-1, {}, [](const World& world) {
    if (world.owned_ranks()[0] == 1) return true;  // leaves
    return all_sum(DeviceMesh(world, {kRanks}, {"tp"})) == 3;
  });
  CHECK(o.took < kAtOnce);
  for (int64_t rank : {0, 2}) {
    CHECK_THAT(o.errors[rank], Contains("rank 1 failed: it has left") &&
                                   Contains("waited in the making of the group tp of ranks 0,1,2 for all_reduce over "
                                            "tp: Float, 0 B"));
  }
}

TEST_CASE("faults: a late call is waited for, one past the deadline is an error") {
  const auto steps = [](const World& world) { return all_steps(world, 8); };
  constexpr milliseconds deadline{5000};
  const Outcome late = run_job(1, {Fault::Kind::kSlow, 5, milliseconds(600)}, steps, deadline);
  CHECK(late.fired == 1);
  CHECK(late.errors == std::vector<std::string>(kRanks));
  CHECK(late.right == std::vector<bool>(kRanks, true));
  CHECK(late.took >= milliseconds(600));
  const Outcome too_late = run_job(1, {Fault::Kind::kSlow, 6, milliseconds(9000)}, steps, deadline);
  CHECK(too_late.fired == 1);
  CHECK(too_late.took < milliseconds(9000) + kAtOnce);
  for (const auto& error : too_late.errors) {
    CHECK_THAT(error, Contains("rank 1 failed: it did not reach call 6: all_gather") && Contains("within 5 s") &&
                          Contains("its last one there was call 5: all_reduce"));
  }
}

TEST_CASE("faults: a rank whose last call is missing has left") {
  const Outcome o = run_job(0, {Fault::Kind::kMissing, 8}, [](const World& world) { return all_steps(world, 8); });
  CHECK(o.fired == 1);
  CHECK(o.errors[0] == "");
  CHECK_FALSE(o.right[0]);  // it never got the others' parts
  for (int64_t rank : {1, 2})
    CHECK_THAT(o.errors[rank], Contains("rank 0 failed: it has left") && Contains("call 8: all_to_all"));
}

TEST_CASE("faults: a rank that throws fails the others, and all tensors are unchanged") {
  for (int64_t call = 5; call <= 8; ++call) {
    CAPTURE(call);
    std::vector<char> unchanged(kRanks);
    const Outcome o = run_job(1, {Fault::Kind::kThrow, call}, [&](const World& world) {
      const DeviceMesh mesh(world, {kRanks}, {"tp"});
      const int64_t rank = world.owned_ranks()[0];
      FromLocalOptions options;
      options.shape = {kRanks, kRanks};
      const auto part = at::full({1, kRanks}, static_cast<double>(rank));
      const auto x = from_local({part.clone()}, mesh, {Shard(0)}, options);
      bool right = all_steps(world, 4);
      try {
        const FaultSteps job(world);
        for (int64_t k = 5; k < call; ++k) right &= job.run(k);
        redistribute(x, {call % 2 == 0 ? Shard(1) : Replicate()});
      } catch (...) {
        unchanged[rank] = DTensor(x).placements() == Placements{Shard(0)} && at::equal(DTensor(x).local(0), part);
        throw;
      }
      return right;
    });
    CHECK(o.fired == 1);
    CHECK(o.took < kAtOnce);
    CHECK(o.errors[1] == "the disk is full");
    for (int64_t rank : {0, 2}) CHECK_THAT(o.errors[rank], Contains("rank 1 failed: an exception ended its program"));
    CHECK(unchanged == std::vector<char>(kRanks, 1));
  }
}

TEST_CASE("faults: in a world with all its ranks in this process") {
  CHECK_THROWS_WITH(faulty_world(World::local(2), {}), Contains("local(2, cpu) has 2 ranks in this process"));
}

}  // namespace
}  // namespace dtensor::testing
