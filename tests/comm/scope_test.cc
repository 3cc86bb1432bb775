#include "comm/scope.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <stdexcept>
#include <thread>

#include "comm/communicator.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

struct Forbid : CommListener {
  void on_comm(const CommEvent& event, bool before) override {
    if (before) throw std::runtime_error("no " + std::string(to_string(event.collective)) + " allowed");
  }
};

// Counts what reaches a communicator; does nothing.
class Counting : public Communicator {
 public:
  Counting() : Communicator({c10::Device(c10::DeviceType::CPU)}) {}
  int calls = 0;

 protected:
  void do_exchange(const CommCall&, Collective, absl::Span<const Message>, const RankPieces&,
                   const RankPieces&) override {
    ++calls;
  }
  void do_reduce_scatter(const CommCall&, absl::Span<const Message>, const RankPieces&, const RankPieces&,
                         ReduceOp) override {
    ++calls;
  }
  RankPieces do_all_reduce(const CommCall&, const RankPieces& inputs, ReduceOp) override { return ++calls, inputs; }
  void do_barrier(const CommCall&) override { ++calls; }
};

// One of each, on a mesh of two ranks.
void call_all(Communicator& comm, const CommCall& call, const at::Tensor& t) {
  const RankTensors inputs = {t, t};
  const RankPieces pieces = {{t, t}, {t, t}};
  comm.all_reduce(call, inputs, ReduceOp::kSum);
  comm.all_gather(call, inputs);
  comm.reduce_scatter(call, pieces, ReduceOp::kSum);
  comm.all_to_all(call, pieces);
  comm.broadcast(call, inputs, 0);
  comm.scatter(call, pieces, 0);
  comm.gather(call, inputs, 0);
  comm.permute(call, inputs, {1, 0});
  comm.barrier(call);
}

TEST_CASE("every collective is reported before and after", "[mesh][scope]") {
  const DeviceMesh mesh(World::local(2), {1, 2}, {"dp", "tp"});
  auto call = call_on(mesh, {0, 1});
  call.group = &mesh.get_group("tp");
  call.event.cause = {"aten::mm", "self", "layers.0", false};
  call.event.bytes = 48;
  call.event.dtype = at::kHalf;
  Recorder recorder;
  {
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    call_all(mesh.world().communicator(), call, at::full({3}, 1.0));
  }
  call_all(mesh.world().communicator(), call, at::full({3}, 1.0));  // out of the scope: not heard
  REQUIRE(recorder.events.size() == 2 * kNumCollectives);
  const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                         "scatter",    "gather",     "permute",        "barrier"};
  // Of 3 floats per tensor, between two ranks.
  const int64_t received[] = {12, 12, 12, 12, 12, 12, 12, 12, 0};
  for (int i = 0; i < kNumCollectives; ++i) {
    const auto& [event, before] = recorder.events[2 * i];
    const auto& [done, not_before] = recorder.events[2 * i + 1];
    CHECK(before);
    CHECK_FALSE(not_before);
    CHECK(to_string(event.collective) == names[i]);
    CHECK(done.collective == event.collective);
    CHECK(event.seconds == 0);
    CHECK(done.seconds > 0);
    CHECK_FALSE(event.backward);
    CHECK(event.mesh_dims == "tp");
    CHECK(event.group_size == 2);
    CHECK(done.bytes == 48);
    CHECK(event.received_bytes == -1);
    CHECK(done.received_bytes == received[i]);
    CHECK(done.dtype == at::kHalf);
    CHECK(done.cause.op == "aten::mm");
    CHECK(done.cause.argument == "self");
    CHECK(done.cause.module_path == "layers.0");
    CHECK_FALSE(done.cause.implicit);
  }
}

TEST_CASE("a listener that throws stops the communication", "[mesh][scope]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto call = call_on(mesh, {0});
  Recorder outer;
  Forbid forbid;
  Counting comm;
  const auto t = at::full({3}, 2.0);
  {
    ScopeGuard recording([&](Scope& scope) { scope.listeners.push_back(&outer); });
    ScopeGuard forbidding([&](Scope& scope) { scope.listeners.push_back(&forbid); });
    CHECK_THROWS_WITH(comm.all_gather(call, {t, t}), Contains("no all_gather allowed"));
    CHECK_THROWS_WITH(comm.all_reduce(call, {t, t}, ReduceOp::kSum), Contains("no all_reduce allowed"));
    CHECK_THROWS_WITH(comm.reduce_scatter(call, {{t, t}, {t, t}}, ReduceOp::kSum), Contains("no reduce_scatter"));
    CHECK_THROWS_WITH(comm.all_to_all(call, {{t, t}, {t, t}}), Contains("no all_to_all allowed"));
    CHECK_THROWS_WITH(comm.broadcast(call, {t, t}, 0), Contains("no broadcast allowed"));
    CHECK_THROWS_WITH(comm.scatter(call, {{t, t}, {t, t}}, 0), Contains("no scatter allowed"));
    CHECK_THROWS_WITH(comm.gather(call, {t, t}, 0), Contains("no gather allowed"));
    CHECK_THROWS_WITH(comm.permute(call, {t, t}, {1, 0}), Contains("no permute allowed"));
    CHECK_THROWS_WITH(comm.barrier(call), Contains("no barrier allowed"));
  }
  CHECK(comm.calls == 0);
  CHECK(at::equal(t, at::full({3}, 2.0)));
  CHECK(outer.events.size() == kNumCollectives);
  for (const auto& [event, before] : outer.events) CHECK(before);
  call_all(comm, call, t);
  CHECK(comm.calls == kNumCollectives);
}

TEST_CASE("an invalid call is neither reported nor run", "[mesh][scope]") {
  const DeviceMesh mesh(World::local(2), {2});
  Recorder recorder;
  Counting comm;
  ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
  CHECK_THROWS(comm.all_reduce(call_on(mesh, {0}), {at::full({2}, 1.0), at::full({3}, 1.0)}, ReduceOp::kSum));
  CHECK(recorder.events.empty());
  CHECK(comm.calls == 0);
}

TEST_CASE("scopes nest and end with their guard", "[mesh][scope]") {
  CHECK(current_scope().module_path.empty());
  Recorder first, second;
  {
    ScopeGuard outer([&](Scope& scope) {
      scope.module_path = "encoder";
      scope.listeners.push_back(&first);
    });
    {
      ScopeGuard inner([&](Scope& scope) {
        scope.module_path += ".0";
        scope.listeners.push_back(&second);
      });
      CHECK(current_scope().module_path == "encoder.0");
      CHECK(current_scope().listeners == std::vector<CommListener*>{&first, &second});
    }
    CHECK(current_scope().module_path == "encoder");
    CHECK(current_scope().listeners == std::vector<CommListener*>{&first});
  }
  CHECK(current_scope().listeners.empty());
  CHECK_THROWS(ScopeGuard([](Scope&) { throw std::runtime_error("no scope"); }));
  CHECK(current_scope().listeners.empty());
}

TEST_CASE("a scope belongs to its thread and is part of ATen's thread state", "[mesh][scope]") {
  ScopeGuard guard([](Scope& scope) { scope.module_path = "encoder"; });
  const at::ThreadLocalState state;
  std::string bare = "?", carried = "?", after = "?";
  std::thread([&] {
    bare = current_scope().module_path;
    {
      at::ThreadLocalStateGuard of_caller(state);
      ScopeGuard inner([](Scope& scope) { scope.module_path += ".0"; });
      carried = current_scope().module_path;
    }
    after = current_scope().module_path;
  }).join();
  CHECK(bare.empty());
  CHECK(carried == "encoder.0");
  CHECK(after.empty());
  CHECK(current_scope().module_path == "encoder");
}

TEST_CASE("backward has the scope of its caller, on any thread", "[mesh][scope]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto call = call_on(mesh, {0});
  auto x = at::full({3}, 2.0);
  x.set_requires_grad(true);
  auto y = x.mul(x);
  std::thread::id hook_thread;
  std::string seen;
  y.register_hook([&](const at::Tensor& grad) {
    hook_thread = std::this_thread::get_id();
    seen = current_scope().module_path;
    return mesh.world().communicator().all_reduce(call, {grad, grad}, ReduceOp::kSum)[1];
  });
  Recorder recorder;
  std::thread::id backward_thread;
  {
    ScopeGuard guard([&](Scope& scope) {
      scope.module_path = "loss";
      scope.listeners.push_back(&recorder);
    });
    const at::ThreadLocalState state;
    std::thread([&] {
      at::ThreadLocalStateGuard of_caller(state);
      backward_thread = std::this_thread::get_id();
      y.sum().backward();
    }).join();
    mesh.world().communicator().barrier(call);
  }
  CHECK(hook_thread == backward_thread);
  CHECK(seen == "loss");
  CHECK(at::equal(x.grad(), at::full({3}, 8.0)));
  REQUIRE(recorder.events.size() == 4);
  CHECK(recorder.events[0].first.backward);
  CHECK(recorder.events[1].first.backward);
  CHECK_FALSE(recorder.events[2].first.backward);
}

}  // namespace
}  // namespace dtensor
