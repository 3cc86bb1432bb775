// What CommDebugMode reports about inputs that operators take from a tensor's cache.
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "comm/reuse_event.h"
#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using at::Tensor;

DeviceMesh four_ranks(bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(4) : World::local(4), {4}, {"tp"});
}

// A matrix sharded by rows, and a much larger one sharded by columns: mm() gathers the first, 192 bytes per rank.
Tensor few_rows(const DeviceMesh& mesh) { return ones({4, 16}, mesh, {Shard(0)}); }
Tensor wide(const DeviceMesh& mesh) { return ones({16, 1024}, mesh, {Shard(1)}); }
// A Partial matrix of [4, 16], 256 bytes: an all_reduce of it receives 384 bytes per rank.
Tensor product(const DeviceMesh& mesh) { return ones({4, 8}, mesh, {Shard(1)}).mm(ones({8, 16}, mesh, {Shard(0)})); }

void send_saved(const char* op, const char* argument, const char* module, bool backward, const char* saved,
                int64_t bytes) {
  current_scope().listeners.back()->on_reuse({{op, argument, module}, backward, saved, bytes});
}

}  // namespace

TEST_CASE("reused inputs: query, key and value share one gathered input") {
  const DeviceMesh mesh = four_ranks(GENERATE(false, true));
  const Tensor x = few_rows(mesh), q = wide(mesh), k = wide(mesh), v = wide(mesh);
  CommDebugMode comm;
  for (const Tensor& w : {q, k, v}) x.mm(w);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 192);
  CHECK(comm.reused() == 2);
  CHECK(comm.reused_bytes() == 2 * 192);
  const std::vector<ReuseRow> rows = comm.reused_rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].op == "aten::mm");
  CHECK(rows[0].argument == "self");
  CHECK(rows[0].saved == "all_gather(tp)");
  CHECK(rows[0].count == 2);
  CHECK_FALSE(rows[0].backward);
}

TEST_CASE("reused inputs: none after a write, and none after the cache was emptied") {
  const DeviceMesh mesh = four_ranks(GENERATE(false, true));
  const Tensor x = few_rows(mesh), w = wide(mesh);
  CommDebugMode comm;
  x.mm(w);
  x.add_(1);
  x.mm(w);
  CHECK(comm.total() == 2);
  CHECK(comm.reused() == 0);
  forget_remembered(mesh.world());
  x.mm(w);
  CHECK(comm.total() == 3);
  CHECK(comm.reused() == 0);
  x.mm(w);
  CHECK(comm.total() == 3);
  CHECK(comm.reused() == 1);
}

TEST_CASE("reused inputs: backward takes what forward has reduced, and names the module path of its scope") {
  const DeviceMesh mesh = four_ranks();
  const Tensor p = product(mesh), w = distribute_tensor(at::ones({16, 1024}), mesh, {Shard(1)}).requires_grad_();
  CommDebugMode comm;
  ModulePath path("head");
  const Tensor loss = p.mm(w).sum();
  CHECK(comm.count("all_reduce") == 1);
  CHECK(comm.reused() == 0);
  loss.backward();
  const std::vector<ReuseRow> rows = comm.reused_rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].backward);
  CHECK(rows[0].op == "aten::mm");
  CHECK(rows[0].module_path == "head");
  CHECK(rows[0].saved == "all_reduce(tp)");
  CHECK(rows[0].count == 1);
  CHECK(rows[0].bytes == 384);
}

TEST_CASE("reused inputs: modes nest, and reset() starts again") {
  const DeviceMesh mesh = four_ranks();
  const Tensor x = few_rows(mesh), w = wide(mesh);
  CommDebugMode outer;
  x.mm(w);
  {
    CommDebugMode inner;
    x.mm(w);
    CHECK(inner.reused() == 1);
  }
  x.mm(w);
  CHECK(outer.reused() == 2);
  outer.reset();
  CHECK(outer.reused() == 0);
  CHECK(outer.reused_rows().empty());
}

TEST_CASE("reused inputs: a listener that does not want them gets none, also beside one that does") {
  struct Counter final : CommListener {
    void on_comm(const CommEvent&, bool before) override { calls += before ? 1 : 0; }
    void on_reuse(const ReuseEvent&) override { ++reused; }
    int calls = 0, reused = 0;
  };
  const DeviceMesh mesh = four_ranks();
  const Tensor x = few_rows(mesh), w = wide(mesh);
  Counter counter;
  const ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  x.mm(w);
  x.mm(w);
  CHECK(counter.calls == 1);
  CHECK(counter.reused == 0);
  CommDebugMode comm;
  x.mm(w);
  CHECK(comm.reused() == 1);
  CHECK(counter.reused == 0);
}

TEST_CASE("reused inputs: each input of a call counts, with its argument") {
  const DeviceMesh mesh = four_ranks(GENERATE(false, true));
  const Tensor p = product(mesh);
  CommDebugMode comm;
  p.exp();
  p / p;
  CHECK(comm.total() == 1);
  const std::vector<ReuseRow> rows = comm.reused_rows();
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].op == "aten::div.Tensor");
  CHECK(rows[0].argument == "other");
  CHECK(rows[1].argument == "self");
  CHECK(comm.reused_bytes() == 2 * 384);
}

TEST_CASE("reused inputs: a reduced Partial counts, also in operators that could have taken its addends") {
  const DeviceMesh mesh = four_ranks(GENERATE(false, true));
  const Tensor p = product(mesh), never_reduced = product(mesh);
  CommDebugMode comm;
  p.exp();
  never_reduced * 2;
  CHECK(comm.reused() == 0);
  CHECK(DTensor(p * 2).placements() == Placements{Replicate()});
  CHECK(comm.total() == 1);
  CHECK(comm.reused() == 1);
  CHECK(comm.reused_rows()[0].saved == "all_reduce(tp)");
}

TEST_CASE("reused inputs: an input taken before its operator failed counts, and counting goes on") {
  const DeviceMesh mesh = four_ranks();
  const Tensor p = product(mesh), other = product(mesh);
  CommDebugMode comm;
  p.exp();
  {
    ForbidImplicitCommunication none;
    CHECK_THROWS(p / other);  // p is cached, the other would have to be reduced
    CHECK_NOTHROW(p.sin());   // a reuse is no communication
  }
  CHECK(comm.total() == 1);
  CHECK(comm.reused() == 2);
  p / other;
  CHECK(comm.total() == 2);
  CHECK(comm.reused() == 3);
}

TEST_CASE("reused inputs: what needs no communication is not listed") {
  CommDebugMode comm;
  const DeviceMesh mesh = four_ranks();
  const Tensor split = ones({16, 16}, mesh, {Shard(0)}), whole = ones({16, 16}, mesh);
  for (int i = 0; i < 3; ++i) split + whole;  // a rank takes its rows of `whole`
  const DeviceMesh one(World::local(1), {1}, {"tp"});
  const Tensor x = few_rows(one), w = wide(one);
  for (int i = 0; i < 3; ++i) x.mm(w);
  // A view without elements of a tensor that is cached.
  const Tensor p = product(mesh);
  p.exp();
  p.slice(0, 0, 0).exp();
  CHECK(comm.total() == 1);
  CHECK(comm.reused() == 0);
  CHECK(comm.to_string().find("reused") == std::string::npos);
}

TEST_CASE("reused inputs: margins of a shift, and the ghost region of a padded tensor") {
  CommDebugMode comm;
  const DeviceMesh line = four_ranks(GENERATE(false, true));
  const Tensor x = ones({24, 6}, line, {Shard(0)});
  x.roll({2}, {0});
  CHECK(comm.reused() == 0);
  x.roll({-1}, {0});
  REQUIRE(comm.reused() == 1);
  CHECK(comm.reused_rows()[0].saved == "margins");
  CHECK(comm.reused_rows()[0].op == "aten::roll");
  CHECK(comm.total() == 1);

  comm.reset();
  const DeviceMesh grid(World::abstract(16), {4, 4}, {"y", "x"});
  const Tensor padded = at::constant_pad_nd(zeros({8192, 8192}, grid, {Shard(0), Shard(1)}), {1, 1, 1, 1});
  const auto window = [&](int64_t row, int64_t column) { return padded.narrow(0, row, 8192).narrow(1, column, 8192); };
  window(0, 1).exp();  // fetches the region for all four
  CHECK(comm.total() == 1);
  CHECK(comm.reused() == 0);
  window(2, 1).exp(), window(1, 0).exp(), window(1, 2).exp();
  CHECK(comm.total() == 1);
  CHECK(comm.reused() == 3);
  for (const ReuseRow& row : comm.reused_rows()) CHECK(row.saved == "ghost region");
  CHECK(comm.reused_bytes() > 0);
}

TEST_CASE("reused inputs: the sums of a gradient, of which the bytes are not known") {
  const DeviceMesh mesh = four_ranks();
  const Tensor scores = distribute_tensor(at::ones({8, 256}), mesh, {Shard(1)}).requires_grad_();
  const Tensor loss = at::nll_loss(at::log_softmax(scores, 1), zeros({8}, mesh, {}, {.dtype = at::kLong}));
  CommDebugMode comm;
  loss.backward();
  const std::vector<ReuseRow> rows = comm.reused_rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].op == "aten::_log_softmax_backward_data");
  CHECK(rows[0].argument == "grad_output");
  CHECK(rows[0].saved == "sums");
  CHECK(rows[0].bytes == 0);
}

TEST_CASE("reused inputs: a section of the tree, and a list in the JSON") {
  CommDebugMode comm;
  send_saved("aten::mm", "self", "layers.0", false, "all_gather(tp)", 1000);
  send_saved("aten::mm", "self", "layers.0", false, "all_gather(tp)", 1000);
  send_saved("aten::roll", "self", "", false, "margins", 20);
  send_saved("aten::mm", "mat2", "", true, "all_reduce(dp)", 4096);
  send_saved("aten::_log_softmax_backward_data", "grad_output", "", true, "sums", 0);
  CHECK(comm.total() == 0);
  CHECK(comm.reused() == 5);
  CHECK(comm.to_string() == R"(0 collectives, 0 bytes
reused: 5 inputs, 6,116 bytes not received
├─ aten::roll self: margins x1, 20 bytes
├─ aten::mm self in layers.0: all_gather(tp) x2, 2,000 bytes
├─ aten::_log_softmax_backward_data grad_output, backward: sums x1
└─ aten::mm mat2, backward: all_reduce(dp) x1, 4,096 bytes
)");
  const auto j = nlohmann::json::parse(comm.to_json());
  REQUIRE(j["reused"].size() == 4);
  CHECK(j["reused"][1]["module"] == "layers.0");
  CHECK(j["reused"][1]["count"] == 2);
  CHECK(j["reused"][1]["bytes"] == 2000);
  CHECK(j["reused"][3]["phase"] == "backward");
  CHECK(j["reused"][3]["saved"] == "all_reduce(dp)");
  CHECK(j["rows"].empty());
}

}  // namespace dtensor
