// Layouts chosen together: a run with the plan saves as much as it states, in the world where it was made and in one
// with data, and values stay the same.
#include "dtensor/optimize_layouts.h"

#include <torch/nn.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/remembered_layouts.h"
#include "observe/comm_debug_mode.h"
#include "plan/redistribute_plan.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;

// A product whose sum over the ranks three operators need; for each alone, deferring the reduction is best.
struct Step {
  explicit Step(const World& world) : mesh(world, {4}, {"tp"}) {
    torch::manual_seed(1);
    a = torch::randn({64, 16}, torch::kDouble);
    b = torch::randn({16, 8}, torch::kDouble);
    c = torch::randn({8, 4}, torch::kDouble);
    da = distribute_tensor(a, mesh, {Shard(1)});
    db = distribute_tensor(b, mesh, {Shard(0)});
    dc = distribute_tensor(c, mesh);
  }

  static Tensor compute(const Tensor& a, const Tensor& b, const Tensor& c) {
    const Tensor p = a.mm(b);
    const Tensor first = p.mm(c).exp().sum(), second = p.mm(c * 2).sin().sum();  // in this order
    return first + second + p.square().sum();
  }
  void operator()() { result = compute(da, db, dc); }

  DeviceMesh mesh;
  Tensor a, b, c, da, db, dc, result;
};

TEST_CASE("optimize_layouts: one reduction replaces three, and a pinned step runs with it",
          "[dtensor][optimize_layouts]") {
  Step abstract(World::abstract(4));
  int64_t num_reports = 0;
  OptimizeLayoutsOptions options;
  options.progress = [&](int64_t, double) { ++num_reports; };
  const LayoutPlan plan = optimize_layouts([&] { abstract(); }, options);
  CAPTURE(plan.explain());
  CHECK(plan.before.collectives == 3);
  CHECK(plan.after.collectives == 1);
  CHECK(plan.after.seconds < plan.before.seconds);
  CHECK(plan.pins.size() == 1);
  CHECK(num_reports == plan.trials - 1);

  Step real(World::local(4));
  CommDebugMode comm;
  {
    const PinnedLayouts pinned(plan);
    real();
    CHECK(pinned.missed() == 0);
  }
  CHECK(comm.total() == 1);
  CHECK(full_tensor(real.result).item<double>() ==
        Approx(Step::compute(real.a, real.b, real.c).item<double>()).epsilon(1e-12));
  comm.reset();
  real();  // no longer pinned
  CHECK(comm.total() == 3);
}

// Every layer's product is needed by three operators behind smaller ones: an improvement for one layer holds for all.
TEST_CASE("optimize_layouts: repeated layers are changed together", "[dtensor][optimize_layouts]") {
  constexpr int kLayers = 12;
  const World world = World::abstract(4);
  std::vector<Step> layers;  // each has its own weights
  for (int i = 0; i < kLayers; ++i) layers.emplace_back(world);
  const auto step = [&] {
    for (Step& layer : layers) layer();
  };
  OptimizeLayoutsOptions few;
  few.max_trials = 12;  // fewer than there are decisions
  const LayoutPlan plan = optimize_layouts(step, few);
  CAPTURE(plan.explain());
  CHECK(plan.before.collectives == 3 * kLayers);
  CHECK(plan.after.collectives == kLayers);
  CHECK(plan.pins.size() == kLayers);
}

// For each product, moving its smaller factor is best. Then the larger sums have different layouts; to avoid that both
// products must move the larger factor.
TEST_CASE("optimize_layouts: finds two changes that gain only together", "[dtensor][optimize_layouts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const auto make = [&](c10::ScalarType dtype, int64_t dim) {
    return distribute_tensor(torch::empty({4096, 4096}, torch::TensorOptions(torch::kMeta).dtype(dtype)), mesh,
                             {Shard(dim)});
  };
  limit_remembered_bytes(mesh.world(),
                         0);  // otherwise the second product would reuse the factor that the first one moved
  const Tensor x = make(torch::kFloat, 1), y = make(torch::kHalf, 0), w = make(torch::kDouble, 0);
  const auto step = [&] { ((x * y).to(torch::kDouble) + (x + y).to(torch::kDouble)).mul(w).exp(); };
  const LayoutPlan plan = optimize_layouts(step);
  CAPTURE(plan.explain());
  CHECK(plan.before.collectives == 3);
  CHECK(plan.after.bytes < plan.before.bytes);
  CHECK(plan.pins.size() == 2);
}

TEST_CASE("optimize_layouts: an empty plan if nothing is better", "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const LayoutPlan plan = optimize_layouts([&] { s.da.mm(s.db).exp(); });
  CHECK(plan.pins.empty());
  CHECK(plan.before.collectives == plan.after.collectives);
  CHECK_THAT(plan.explain(), Catch::Contains("nothing better"));
}

TEST_CASE("optimize_layouts: collectives before the first decided call count", "[dtensor][optimize_layouts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const Tensor x = zeros({64, 16}, mesh, {Shard(0)});
  const auto redistributed = [&] { redistribute(x, {Shard(1)}).mul(2); };
  const auto rolled = [&] { x.roll(1, 0).mul(2); };
  for (const std::function<void()>& step : {std::function<void()>(redistributed), std::function<void()>(rolled)}) {
    CommDebugMode comm;
    step();
    const StepCost cost = optimize_layouts(step).before;
    CHECK(cost.collectives == 1);
    CHECK(cost.bytes == comm.events()[0].bytes);
    CHECK(cost.seconds > 0);
  }
}

TEST_CASE("optimize_layouts: a step that becomes cheaper by itself gets no pins and no gain",
          "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const Tensor small = zeros({4, 16}, s.mesh, {Shard(1)});
  int runs = 0;
  const LayoutPlan plan = optimize_layouts([&] { runs++ == 0 ? s() : void(small.mm(s.db).exp().sum()); });
  CHECK(runs > 2);
  CHECK(plan.pins.empty());
  CHECK(plan.after.seconds == plan.before.seconds);
}

TEST_CASE("optimize_layouts: the memory before the first decided call counts in trials",
          "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const Tensor large = zeros({1024, 16}, s.mesh, {Shard(0)});
  const auto step = [&] {
    redistribute(large, {Replicate()});  // 64 KiB, released again
    s();
  };
  OptimizeLayoutsOptions options;
  options.max_bytes = int64_t{64} << 10;
  CHECK_FALSE(optimize_layouts([&] { s(); }, options).pins.empty());
  CHECK(optimize_layouts(step, options).pins.empty());
}

TEST_CASE("optimize_layouts: respects the limits for memory and trials", "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  OptimizeLayoutsOptions options;
  options.max_trials = 3;
  CHECK(optimize_layouts([&] { s(); }, options).trials <= 3);
  options.max_trials = 1000;
  options.max_bytes = 1;
  CHECK(optimize_layouts([&] { s(); }, options).pins.empty());
}

TEST_CASE("optimize_layouts: plans are saved to and loaded from files", "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const LayoutPlan plan = optimize_layouts([&] { s(); });
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/plan.json";
  plan.save(path);
  const LayoutPlan loaded = LayoutPlan::load(path);
  CHECK(loaded.explain() == plan.explain());
  {
    const PinnedLayouts pinned(loaded);
    s();
    CHECK(pinned.missed() == 0);
  }
  CHECK_THAT(testing::error_text([&] { LayoutPlan::load(path + ".none"); }), Catch::Contains("cannot read"));
  for (const char* text : {"", "[]", "{\"format\": 1}", "{\"format\": \"dtensor layout plan\", \"version\": 1}",
                           "{\"format\": \"dtensor layout plan\", \"version\": 9, \"pins\": []}"}) {
    std::ofstream(path) << text;
    CHECK_THAT(testing::error_text([&] { LayoutPlan::load(path); }),
               Catch::Contains("is no layout plan") && Catch::Contains(path));
  }
  CHECK_THAT(testing::error_text([&] { plan.save("/nowhere/plan.json"); }), Catch::Contains("cannot write"));
}

TEST_CASE("optimize_layouts: a different step misses its pins and is computed as usual",
          "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const LayoutPlan plan = optimize_layouts([&] { s(); });
  const PinnedLayouts pinned(plan);
  s.dc.exp();
  s.da.mm(s.db).exp();
  CHECK(pinned.missed() == 1);
  CHECK_THAT(testing::error_text([] { optimize_layouts([] { torch::ones({2}).exp(); }); }),
             Catch::Contains("[optimize_layouts] the step computes nothing with distributed tensors"));
}

TEST_CASE("advise: names the costliest decisions, the reason and alternatives", "[dtensor][optimize_layouts]") {
  Step s(World::abstract(4));
  const Tensor rows = distribute_tensor(s.a, s.mesh, {Shard(0)});
  const auto step = [&] {
    s();
    rows.mm(s.db);
  };
  const std::string text = advise(step, 9);
  CAPTURE(text);
  CHECK_THAT(text, Catch::Contains("4 collectives"));
  CHECK_THAT(text, Catch::Contains("aten::pow.Tensor_Scalar(R) -> R; input 0: P(sum) -> R: all_reduce(tp)"));
  CHECK_THAT(text, Catch::Contains("aten::mm(S(0), R) -> S(0)"));
  CHECK_THAT(text, Catch::Contains("next best"));
  CHECK_THAT(advise([&] { s(); }, 1), !Catch::Contains("aten::exp"));
}

// Two parts, each with one decision to change: `wide` has the costlier calls, but fewer of them, than `often`.
struct TwoParts {
  const DeviceMesh mesh = DeviceMesh(World::abstract(4), {4}, {"tp"});
  Tensor sums(int64_t rows, int64_t uses) const {
    const Tensor p = zeros({rows, 16}, mesh, {Shard(1)}).mm(zeros({16, 8}, mesh, {Shard(0)}));
    Tensor sum = zeros({}, mesh);
    for (int64_t i = 0; i < uses; ++i) sum = sum + p.mm(zeros({8, 4 + i}, mesh)).exp().sum();
    return sum;
  }
  void wide() const { sums(256, 3); }
  void often() const { sums(64, 8); }
};

TEST_CASE("advise: the change of one decision that gains most for the whole step", "[dtensor][optimize_layouts]") {
  const TwoParts parts;
  const std::string wide = advise([&] { parts.wide(); }, 0), often = advise([&] { parts.often(); }, 0),
                    both = advise([&] { parts.wide(), parts.often(); }, 0);
  CAPTURE(wide, often, both);
  const auto call_of = [](const std::string& text) {  // "aten::mm(...): computed on ..."
    return text.substr(text.find("aten::", text.find("  call ")));
  };
  CHECK_THAT(wide, Catch::Contains("the change that gains most: 1 decisions changed"));
  CHECK(call_of(both) == call_of(often));
  CHECK(call_of(both) != call_of(wide));
  const LayoutPlan plan = optimize_layouts([&] { parts.wide(), parts.often(); });
  CAPTURE(plan.explain());
  CHECK(plan.pins.size() == 2);

  const Tensor x = zeros({8, 4}, parts.mesh, {Shard(0)});
  CHECK_THAT(advise([&] { x.exp(); }, 1), Catch::Contains("no change of one decision, and of those alike, makes"));
}

TEST_CASE("advise: says if it did not try all changes", "[dtensor][optimize_layouts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const auto step = [&] {
    for (int64_t i = 1; i <= 150; ++i) zeros({8, i}, mesh, {Shard(0)}).mm(zeros({i, 4}, mesh, {Shard(0)}));
  };
  CHECK_THAT(advise(step, 0), Catch::Contains("of the first 199 that were tried"));
}

TEST_CASE("advise: deferred calls are charged to the calls that made them", "[dtensor][optimize_layouts]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"all"});
  const Tensor ids = zeros({64, 2}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const Tensor weights = zeros({64, 8}, mesh, {Shard(0)});
  std::vector<Tensor> tables;
  for (int64_t i = 0; i < 2; ++i) tables.push_back(zeros({100 + i, 8}, mesh, {Shard(0)}, {.requires_grad = true}));
  const auto step = [&] {
    for (const Tensor& t : tables) t.mutable_grad() = Tensor();
    Tensor sum = weights;
    for (int64_t i = 0; i < 2; ++i) sum = sum + torch::embedding(tables[i], ids.select(1, i)).mul(weights);
    sum.sum().backward();
  };
  const std::string text = advise(step, 20);
  CAPTURE(text);
  size_t gradients = 0;
  for (size_t at = 0; (at = text.find(": aten::embedding_dense_backward(", at)) != std::string::npos; ++at) ++gradients;
  CHECK(gradients == 2);
  CHECK_THAT(text, !Catch::Contains("mul.Tensor"));
}

}  // namespace
}  // namespace dtensor
