// predict_timeline(): the spans make up the predicted step, and the picture shows them.
#include "dtensor/step_timeline.h"

#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/factories.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "plan/cost_model.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Kind = StepSpan::Kind;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("predict_timeline: spans follow one another and add up to the predicted step", "[dtensor][step_timeline]") {
  const DeviceMesh mesh(World::abstract(8), {2, 4}, {"dp", "tp"});
  set_cost_model(mesh.world(), testing::round_numbers());
  const MeshScope on_mesh(mesh);
  testing::Mlp model(64, 256);
  parallelize_module(*model, mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}}, {.mesh_dim = "tp"});
  const Tensor x = zeros({32, 64}, mesh, {Shard(0), Replicate()});
  const auto step = [&] {
    model->zero_grad();
    model->forward(x).square().mean().backward();
  };
  step();
  mesh.world().memory().reset_peak();
  const int64_t peak_before = mesh.world().memory().peak_bytes();
  const StepTimeline timeline = predict_timeline(step, mesh.world());
  CHECK(mesh.world().memory().peak_bytes() == std::max(peak_before, timeline.step.peak_bytes));
  const StepPrediction p = predict_step(step, mesh.world());
  CHECK(timeline.step.to_string() == p.to_string());
  CHECK(timeline.step.peak_bytes == p.peak_bytes);

  double end = 0, products = 0, collectives = 0;
  int64_t peak = 0;
  bool backward = false, in_up = false;
  for (const StepSpan& s : timeline.spans) {
    CHECK(s.begin == end);
    CHECK(s.end >= s.begin);
    end = s.end;
    peak = std::max(peak, s.peak_bytes);
    if (s.kind == Kind::kProduct) products += s.end - s.begin;
    if (s.kind == Kind::kCollective) collectives += s.end - s.begin;
    backward = backward || s.backward;
    in_up = in_up || (s.kind == Kind::kProduct && s.module_path == "up");
  }
  CHECK(end == Approx(p.seconds()));
  CHECK(products == Approx(p.product_seconds));
  CHECK(collectives == Approx(p.communication_seconds()));
  CHECK(peak <= p.peak_bytes);
  CHECK(peak > p.live_bytes);
  CHECK(backward);
  CHECK(in_up);
  CHECK_FALSE(timeline.spans.front().backward);

  const std::string svg = timeline.to_svg();
  CHECK_THAT(svg, Catch::StartsWith("<svg xmlns=") && Catch::EndsWith("</svg>\n"));
  for (const char* part : {"in up", "all_reduce(tp)", "forward", "backward", "peak ", "matrix products, "})
    CHECK_THAT(svg, Catch::Contains(part));
  CHECK(count_of(svg, "<title>") <= timeline.spans.size());
}

// A step of 100,000 operators is no larger in the picture than its pixels.
TEST_CASE("StepTimeline: the picture of a long step stays small", "[dtensor][step_timeline]") {
  StepTimeline timeline;
  timeline.step.operator_seconds = 1;
  timeline.step.peak_bytes = 500;
  for (int64_t i = 0; i < 100000; ++i) {
    const Kind kind = i % 2 == 0 ? Kind::kProduct : Kind::kOperator;
    timeline.spans.push_back({kind, "aten::<add>", "", i >= 50000, static_cast<double>(i) * 1e-5,
                              static_cast<double>(i + 1) * 1e-5, 1 + i % 500});
  }
  const std::string svg = timeline.to_svg();
  CHECK(svg.size() < 400000);
  CHECK_THAT(svg, Catch::Contains("aten::&lt;add&gt; and "));
  CHECK_THAT(svg, Catch::Contains("peak 500 B at aten::&lt;add&gt;"));
  CHECK(count_of(svg, "<svg") == 1);
}

TEST_CASE("predict_timeline: errors", "[dtensor][step_timeline]") {
  CHECK_THAT(StepTimeline().to_svg(), Catch::EndsWith("</svg>\n"));
  const World world = World::abstract(2);
  CHECK_THAT(testing::error_text([&] { predict_timeline(nullptr, world); }),
             Catch::Contains("[predict_timeline] the step is an empty function"));
  CHECK_THAT(testing::error_text([&] { predict_timeline([] {}, world); }),
             Catch::Contains("[predict_timeline] the step computes nothing with distributed tensors"));
}

}  // namespace
}  // namespace dtensor
