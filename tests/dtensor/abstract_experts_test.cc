// moe_dispatch() and moe_combine() in worlds without data: what a step communicates and computes with even routing.
#include <ATen/ops/_grouped_mm.h>
#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/activation_checkpoint.h"
#include "dtensor/dtensor.h"
#include "dtensor/predict_step.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using torch::Tensor;

constexpr int64_t kWidth = 8, kHidden = 16;

struct ExpertLayer {
  ExpertLayer(const DeviceMesh& mesh, const Placements& experts, int64_t count)
      : up(zeros({count, kWidth, kHidden}, mesh, experts, {.requires_grad = true})),
        down(zeros({count, kHidden, kWidth}, mesh, experts, {.requires_grad = true})) {}
  Tensor up, down;
  int64_t most_rows = 0;  // that a rank got

  Tensor forward(const Tensor& x, const Tensor& ids, const Tensor& shares) {
    const ExpertTokens sent = moe_dispatch(x, ids, {up, down}, "ep");
    std::vector<Tensor> results;
    for (size_t i = 0; i < sent.rows.size(); ++i) {
      most_rows = std::max(most_rows, sent.rows[i].size(0));
      const Tensor hidden = torch::relu(at::_grouped_mm(sent.rows[i], sent.weights[0][i], sent.offsets[i]));
      results.push_back(at::_grouped_mm(hidden, sent.weights[1][i], sent.offsets[i]));
    }
    return moe_combine(sent, results, shares);
  }
};

struct EventList final : internal::CommListener {
  void on_comm(const CommEvent& e, bool before) override {
    if (before) return;
    all.push_back(absl::StrCat(std::string(to_string(e.collective)), "(", e.mesh_dims, ") of ", e.bytes, " bytes for ",
                               e.cause.op, e.backward ? " in backward" : ""));
  }
  std::vector<std::string> all;
};

struct EvenCase {
  std::vector<int64_t> mesh;
  std::vector<std::string> names;
  Placements tokens, experts;
  int64_t count, choices;
};

// Every expert gets as many rows of each rank.
Tensor even_ids(c10::IntArrayRef sizes, int64_t choices, int64_t count) {
  std::vector<int64_t> all = sizes.vec();
  all.back() = choices;
  int64_t numel = 1;
  for (const int64_t size : all) numel *= size;
  return torch::arange(numel).remainder(count).view(all);
}

struct StepRun {
  EventList events;
  int64_t most_rows = 0;
};

StepRun run_step(const EvenCase& c, const World& world, StepPrediction* prediction = nullptr) {
  const std::vector<int64_t> sizes{16, 8, kWidth};
  const DeviceMesh mesh(world, c.mesh, c.names);
  ExpertLayer layer(mesh, c.experts, c.count);
  const Tensor x = zeros(sizes, mesh, c.tokens, {.requires_grad = true});
  const Tensor shares = zeros({16, 8, c.choices}, mesh, c.tokens, {.requires_grad = true});
  const Tensor ids = world.has_data() ? distribute_tensor(even_ids(sizes, c.choices, c.count), mesh, c.tokens)
                                      : zeros({16, 8, c.choices}, mesh, c.tokens, {.dtype = torch::kLong});
  StepRun run;
  const auto step = [&] {
    const internal::ScopeGuard listening([&](internal::Scope& s) { s.listeners.push_back(&run.events); });
    layer.forward(x, ids, shares).sum().backward();
  };
  if (prediction != nullptr) {
    *prediction = predict_step(step, world);
  } else {
    step();
  }
  CHECK(layer.up.grad().sizes() == layer.up.sizes());
  CHECK(DTensor(layer.down.grad()).placements() == DTensor(layer.down).placements());
  CHECK(DTensor(x.grad()).placements() == DTensor(x).placements());
  run.most_rows = layer.most_rows;
  return run;
}

TEST_CASE("experts without data communicate what ranks do to which as many tokens go", "[experts]") {
  const Placement s = Shard(0), r = Replicate();
  const std::vector<EvenCase> cases = {
      {{4}, {"ep"}, {s}, {s}, 8, 2},
      {{2, 2}, {"dp", "ep"}, {s, s}, {r, s}, 4, 1},
      {{2, 2}, {"dp", "ep"}, {s, s}, {Shard(1), s}, 4, 2},  // gathered over dp
      {{2, 2}, {"ep", "tp"}, {s, r}, {s, r}, 4, 2},         // the same tokens on two ranks
      {{2, 2}, {"ep", "tp"}, {s, Shard(1)}, {s, r}, 2, 2},
      {{4, 1}, {"dp", "ep"}, {s, r}, {r, r}, 4, 2},
  };
  for (const EvenCase& c : cases) {
    CAPTURE(c.mesh, c.names, to_string(c.tokens), to_string(c.experts), c.count, c.choices);
    const StepRun ran = run_step(c, World::local(4));
    StepPrediction prediction;
    const StepRun predicted = run_step(c, World::abstract(4), &prediction);
    CHECK(predicted.events.all == ran.events.all);
    CHECK(predicted.most_rows == ran.most_rows);
    // Two products, each once in forward and twice in backward.
    CHECK(prediction.flops == 2. * 3 * 2 * static_cast<double>(ran.most_rows * kWidth * kHidden));
  }
}

struct Sizes {
  int64_t rows;
  std::vector<int64_t> of_experts;
};

// Of the rank with most experts and tokens.
Sizes received(int64_t tokens, int64_t choices, int64_t experts, int64_t ranks) {
  const DeviceMesh mesh(World::abstract(ranks), {ranks}, {"ep"});
  const Tensor x = zeros({tokens, kWidth}, mesh, {Shard(0)});
  const ExpertTokens sent = moe_dispatch(x, zeros({tokens, choices}, mesh, {Shard(0)}, {.dtype = torch::kLong}),
                                         {zeros({experts, 3}, mesh)}, "ep");
  REQUIRE(sent.rows.size() == 1);
  CHECK(sent.weights[0][0].sizes() == torch::IntArrayRef{static_cast<int64_t>(sent.counts[0].size()), 3});
  CHECK(sent.offsets[0].numel() == static_cast<int64_t>(sent.counts[0].size()));
  const Tensor y = moe_combine(sent, sent.rows);
  CHECK(y.sizes() == x.sizes());
  CHECK(DTensor(y).placements() == Placements{Shard(0)});
  return {sent.rows[0].size(0), sent.counts[0]};
}

TEST_CASE("rows of experts without data are shared evenly, and rounded up", "[experts]") {
  const auto check = [](const Sizes& sizes, int64_t rows, const std::vector<int64_t>& of_experts) {
    CHECK(sizes.rows == rows);
    CHECK(sizes.of_experts == of_experts);
  };
  check(received(8, 2, 4, 4), 4, {4});
  check(received(10, 1, 4, 4), 4, {4});     // of 3 rows a quarter, and one more
  check(received(16, 1, 8, 4), 4, {2, 2});  // one of each rank, for two experts
  check(received(8, 3, 6, 4), 8, {4, 4});   // the last rank has no experts
  check(received(16, 2, 2, 8), 16, {16});   // nor have six of eight
  check(received(0, 2, 4, 4), 0, {0});
}

TEST_CASE("activations between the calls count as memory, and parts of weights not again", "[experts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"ep"});
  ExpertLayer layer(mesh, {Shard(0)}, 4);
  const Tensor x = zeros({1024, kWidth}, mesh, {Shard(0)});
  const Tensor ids = zeros({1024, 1}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const MemoryMeter& meter = mesh.world().memory();
  const int64_t before = meter.live_bytes();
  {
    const Tensor y = layer.forward(x, ids, {});
    // Saved: the rows, what is hidden, and two index vectors a call; besides the result.
    const int64_t floats = 256 * (kWidth + kHidden + kWidth), longs = 256 * 4;
    CHECK(meter.live_bytes() - before >= 4 * floats);
    CHECK(meter.live_bytes() - before <= 4 * (floats + 256 * kHidden) + 8 * longs + 64);
  }
  CHECK(meter.live_bytes() == before);
  const ExpertTokens sent = moe_dispatch(x, ids, {zeros({4, 1024, 1024}, mesh, {Shard(0)})}, "ep");
  CHECK(meter.live_bytes() - before < 2 * 4 * 1024 * 1024);
  CHECK(meter.live_bytes() - before > 4 * 1024 * 1024);  // the weight, of which only the part is left
}

TEST_CASE("experts without data run in a MeshScope, in a checkpoint, and on the device meta", "[experts]") {
  for (const bool meta : {false, true}) {
    const World world = meta ? World::local(4).meta() : World::abstract(4);
    const DeviceMesh mesh(world, {4}, {"ep"});
    const MeshScope scope(mesh);
    ExpertLayer layer(mesh, {Shard(0)}, 8);
    const Tensor ids = zeros({16, 2}, mesh, {Shard(0)}, {.dtype = torch::kLong});
    const Tensor x = zeros({16, kWidth}, mesh, {Shard(0)}, {.requires_grad = true});
    CommDebugMode comm;
    checkpoint([&](const Tensor& t) { return layer.forward(t, ids, {}); }, x).sum().backward();
    CHECK(comm.count(Collective::kAllToAll) == 6);  // forward, again, and backward
    CHECK(comm.bytes(Collective::kAllToAll) == 6 * 6 * kWidth * 4);
    CHECK(layer.up.grad().sizes() == layer.up.sizes());
    CHECK(x.grad().sizes() == x.sizes());
  }
}

TEST_CASE("between the calls tensors without data do not mix with those of the mesh", "[experts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"ep"});
  const Tensor x = zeros({8, kWidth}, mesh, {Shard(0)}), ids = zeros({8, 1}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const ExpertTokens sent = moe_dispatch(x, ids, {zeros({4, 2}, mesh)}, "ep");
  CHECK_THAT(error_text([&] { sent.rows[0].mul(zeros({kWidth}, mesh)); }), Catch::Contains("mesh"));
  CHECK_THAT(error_text([&] { moe_combine(sent, {sent.rows[0].narrow(0, 0, 1)}); }),
             Catch::Contains("the result of rank 0 has the shape [1, 8]"));
}

TEST_CASE("a process without a rank of the mesh cannot send tokens", "[experts]") {
  const DeviceMesh mesh(World::fake(8, 7), {4}, {"ep"});
  const Tensor x = zeros({8, kWidth}, mesh, {Shard(0)}), ids = zeros({8, 1}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  CHECK_THAT(error_text([&] {
               moe_dispatch(x, ids, {zeros({4, 2}, mesh)}, "ep");
             }),
             Catch::Contains("has no rank of the mesh"));
}

}  // namespace
}  // namespace dtensor
