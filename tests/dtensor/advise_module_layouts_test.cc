// advise_module_layouts(): the change that gains most, layouts that do not fit, plans whose patterns cross classes,
// errors.
#include "dtensor/advise_module_layouts.h"

#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/search_module_layouts.h"
#include "mesh/world.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::make_language_model;
using testing::slow_ranks;
using torch::Tensor;

std::vector<Tensor> token_ids() { return std::vector<Tensor>(2, torch::zeros({4, 6}, torch::kLong)); }

// In a world of its own, by apply_layouts() alone.
StepPrediction predicted(const ModuleLayouts& layouts, const CostModel& cost_model) {
  const DeviceMesh mesh(World::abstract(4), {layouts.mesh[0].second, layouts.mesh[1].second}, {"dp", "tp"});
  set_cost_model(mesh.world(), cost_model);
  const MeshScope on_mesh(mesh);
  const ModelWithLoss made = make_language_model();
  apply_layouts(*made.model, mesh, layouts);
  std::vector<Tensor> on;
  for (const Tensor& t : token_ids())
    on.push_back(zeros(t.sizes().vec(), mesh, {Shard(0), Replicate()}, {.dtype = t.scalar_type()}));
  return predict_step([&] { made.loss(on).backward(); }, mesh.world());
}

void check_predictions(const LayoutAdvice& advice, const CostModel& cost_model) {
  CHECK(advice.now.step.seconds() == predicted(advice.now, cost_model).seconds());
  for (const AdvisedChange& c : advice.changes) {
    CAPTURE(c.what);
    const StepPrediction p = predicted(c.layouts, cost_model);
    CHECK(c.layouts.step.seconds() == p.seconds());
    CHECK(c.layouts.step.peak_bytes == p.peak_bytes);
    CHECK(c.seconds == advice.now.step.seconds() - p.seconds());
    CHECK(c.seconds > 0);
    CHECK(!c.reason.empty());
  }
}

TEST_CASE("advise_module_layouts: the style that is missing is the change that gains most",
          "[dtensor][advise_module_layouts]") {
  const SearchModuleLayoutsOptions options = slow_ranks();
  const ModuleLayoutSearch found = search_module_layouts(make_language_model, token_ids(), options);
  const auto missing = std::max_element(found.gains.begin(), found.gains.end(),
                                        [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  REQUIRE(missing->seconds > 0);
  ModuleLayouts now = found.best;
  std::erase_if(now.styles.entries, [&](const auto& entry) {
    return std::count(missing->patterns.begin(), missing->patterns.end(), entry.pattern) > 0;
  });
  const LayoutAdvice advice = advise_module_layouts(make_language_model, token_ids(), now, options);
  CAPTURE(advice.explain());
  REQUIRE(!advice.changes.empty());
  CHECK(advice.changes.front().what.find(missing->patterns.front() + ": ") == 0);
  CHECK(advice.changes.front().what.find(" instead of replicated") != std::string::npos);
  CHECK(advice.changes.front().layouts.step.seconds() <= found.best.step.seconds());
  CHECK(advice.best.step.seconds() <= found.best.step.seconds());
  CHECK(advice.explain().find(" % less") != std::string::npos);
  check_predictions(advice, *options.cost_model);
}

TEST_CASE("advise_module_layouts: the best layouts get no advice", "[dtensor][advise_module_layouts]") {
  const SearchModuleLayoutsOptions options = slow_ranks();
  const ModuleLayouts best = search_module_layouts(make_language_model, token_ids(), options).best;
  const LayoutAdvice advice = advise_module_layouts(make_language_model, token_ids(), best, options);
  CAPTURE(advice.explain());
  CHECK(advice.changes.empty());
  CHECK(advice.fits);
  CHECK(advice.best.step.seconds() == best.step.seconds());
  CHECK(advice.explain().find("the search found nothing better") != std::string::npos);
}

TEST_CASE("advise_module_layouts: other sizes of the mesh are a change", "[dtensor][advise_module_layouts]") {
  SearchModuleLayoutsOptions options = slow_ranks();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  const ModuleLayouts replicated{{{"dp", 1}, {"tp", 4}}, {}, {}, {}};  // every rank computes everything
  const LayoutAdvice advice = advise_module_layouts(make_language_model, token_ids(), replicated, options);
  CAPTURE(advice.explain());
  REQUIRE(!advice.changes.empty());
  CHECK(advice.changes.front().what == "the mesh dp=4 tp=1");
  check_predictions(advice, *options.cost_model);
}

// One pattern for modules of several classes, and one class of which a single module has a style.
TEST_CASE("advise_module_layouts: a change leaves the styles of all other modules",
          "[dtensor][advise_module_layouts]") {
  const SearchModuleLayoutsOptions options = slow_ranks();
  const ModuleLayouts now{
      {{"dp", 2}, {"tp", 2}}, {{{"*.attn.w[qkv]", ColwiseParallel()}, {"layers.0.mlp.up", ColwiseParallel()}}}, {}, {}};
  const LayoutAdvice advice = advise_module_layouts(make_language_model, token_ids(), now, options);
  CAPTURE(advice.explain());
  REQUIRE(!advice.changes.empty());
  check_predictions(advice, *options.cost_model);
  for (const AdvisedChange& c : advice.changes) {
    CAPTURE(c.what, c.layouts.styles.to_string());
    size_t kept = 0;
    for (const ParallelPlan::Entry& was : std::vector<ParallelPlan::Entry>{{"layers.*.attn.wq", ColwiseParallel()},
                                                                           {"layers.*.attn.wk", ColwiseParallel()},
                                                                           {"layers.*.attn.wv", ColwiseParallel()},
                                                                           {"layers.0.mlp.up", ColwiseParallel()}}) {
      kept += std::count(c.layouts.styles.entries.begin(), c.layouts.styles.entries.end(), was);
    }
    const bool of_these = c.what.find("attn.w") != std::string::npos && c.what.find("attn.wo") == std::string::npos;
    CHECK(kept == (of_these || c.what.find("layers.0.mlp.up") == 0 ? 3 : 4));
  }
}

TEST_CASE("advise_module_layouts: layouts that need too much memory", "[dtensor][advise_module_layouts]") {
  SearchModuleLayoutsOptions options = slow_ranks();
  options.allows = nullptr;
  const ModuleLayouts replicated{{{"dp", 4}, {"tp", 1}}, {}, {}, {}};
  const StepPrediction needs = predicted(replicated, *options.cost_model);
  options.max_bytes = needs.peak_bytes - 1;
  const LayoutAdvice advice = advise_module_layouts(make_language_model, token_ids(), replicated, options);
  CAPTURE(advice.explain());
  CHECK(advice.ran);
  CHECK_FALSE(advice.fits);
  CHECK(advice.now.step.peak_bytes == needs.peak_bytes);
  REQUIRE(!advice.changes.empty());
  CHECK(advice.changes.front().fits);
  CHECK(advice.changes.front().reason.find(", which fits") != std::string::npos);
  CHECK(advice.best.step.peak_bytes <= options.max_bytes);
  CHECK(advice.explain().find("which does not fit") != std::string::npos);
}

TEST_CASE("advise_module_layouts: errors", "[dtensor][advise_module_layouts]") {
  const auto text = [](const ModuleLayouts& now) {
    return testing::error_text([&] { advise_module_layouts(make_language_model, token_ids(), now, slow_ranks()); });
  };
  const auto has = [](const std::string& all, const std::string& part) {
    CAPTURE(all, part);
    CHECK(all.find(part) != std::string::npos);
  };
  has(text({{{"dp", 4}, {"tp", 4}}, {}, {}, {}}),
      "is 'dp=4 tp=4'; expected the mesh dims 'dp' and 'tp', in this order, of 4 ranks");
  has(text({{{"dp", 2}, {"model", 2}}, {}, {}, {}}), "expected the mesh dims 'dp' and 'tp', in this order, of 4 ranks");
  has(text({{{"tp", 2}, {"dp", 2}}, {}, {}, {}}), "in this order, of 4 ranks together");
  ModuleLayouts divided{{{"dp", 2}, {"tp", 2}}, {}, {}, {}};
  divided.micro_batches = 3;
  has(text(divided), "cannot be divided into 3 micro-batches");
  divided.micro_batches = 0;
  has(text(divided), "'micro_batches' is 0; it must be at least 1");
  divided.micro_batches = 1, divided.settings = {{"checkpoint", 1}};
  has(text(divided), "the layouts have the settings 'checkpoint=1'; give one value for each");
  ModuleLayouts scheduled{{{"dp", 2}, {"tp", 2}}, {}, {}, {}};
  scheduled.schedule = "1F1B";
  has(text(scheduled), "'schedule' is '1F1B', and 'stages' is 1, which is no pipeline");
  scheduled.schedule = "", scheduled.stages_per_rank = 2;
  has(text(scheduled), "'stages_per_rank' is 2, and 'stages' is 1, which is no pipeline");
  has(text({}), "expected the mesh dims 'dp' and 'tp', in this order, of 4 ranks");
  has(text({{{"dp", 2}, {"tp", 2}}, {{{"layer.*", ColwiseParallel()}}}, {}, {}}), "'layer.*' matches no module");
  has(text({{{"dp", 2}, {"tp", 2}}, {}, {"layer.*"}, {}}), "'layer.*' of a group matches no module");
}

}  // namespace
}  // namespace dtensor
