// predict_module_layouts() and predict_module_timelines(): the step of given layouts is that of a search.
#include "dtensor/predict_module_layouts.h"

#include <torch/nn.h>

#include <algorithm>
#include <functional>
#include <string>

#include "dtensor/search_module_layouts.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::kLayers;
using testing::make_blocks;
using testing::sequences;
using torch::Tensor;

// With pipelines of two stages, or none.
SearchModuleLayoutsOptions searched(bool pipelines) {
  SearchModuleLayoutsOptions options = testing::slow_ranks();
  options.layers = kLayers;
  options.settings = {{"checkpoint", {0, 1}}};
  options.micro_batches = {2, 4};
  options.between_layers = torch::empty({16, 8, 32}, at::kMeta);
  if (pipelines) options.stages = {2};
  return options;
}

TEST_CASE("predict_module_layouts: the best of a search takes as long as the search says",
          "[dtensor][predict_module_layouts]") {
  for (const bool pipelines : {false, true}) {
    const SearchModuleLayoutsOptions options = searched(pipelines);
    const ModuleLayouts best = search_module_layouts(make_blocks, sequences(), options).best;
    ModuleLayouts layouts = best;
    layouts.step = {}, layouts.memory = {};
    const ModuleLayouts predicted = predict_module_layouts(make_blocks, sequences(), layouts, options);
    CAPTURE(pipelines, best.name(), predicted.name());
    CHECK(predicted.name() == best.name());
    CHECK(predicted.step.to_string() == best.step.to_string());
    CHECK(predicted.memory.to_string() == best.memory.to_string());
  }
}

TEST_CASE("predict_module_layouts: layouts that fit nowhere are predicted, too", "[dtensor][predict_module_layouts]") {
  SearchModuleLayoutsOptions options = searched(false);
  options.max_bytes = 1;
  const ModuleLayouts layouts{{{"dp", 4}, {"tp", 1}}, {}, {}, {}};
  CHECK(predict_module_layouts(make_blocks, sequences(), layouts, options).step.peak_bytes > 1);
}

TEST_CASE("predict_module_layouts: the layouts say how many ranks there are, and which mesh dims",
          "[dtensor][predict_module_layouts]") {
  SearchModuleLayoutsOptions options = searched(false);
  options.ranks = 0, options.data_dim = "rows";
  ModuleLayouts layouts{{{"dp", 2}, {"fsdp", 2}, {"cp", 2}, {"tp", 1}}, {}, {"blocks.*", ""}, {}};
  layouts.shard_dim = "fsdp", layouts.context_dim = "cp";
  const ModuleLayouts predicted = predict_module_layouts(make_blocks, sequences(), layouts, options);
  CAPTURE(predicted.step.to_string());
  const auto has = [&](const std::string& name) {
    return std::any_of(predicted.step.communication.begin(), predicted.step.communication.end(),
                       [&](const PredictedCollectives& row) { return row.name() == name; });
  };
  CHECK(has("all_gather(fsdp)"));
  CHECK(predicted.memory.gathered > 0);
}

TEST_CASE("predict_module_timelines: a micro-batch, and the pipeline whose times it has",
          "[dtensor][predict_module_layouts]") {
  const SearchModuleLayoutsOptions options = searched(true);
  const ModuleLayouts best = search_module_layouts(make_blocks, sequences(), options).best;
  const ModuleTimelines timelines = predict_module_timelines(make_blocks, sequences(), best, options);
  REQUIRE(timelines.pipeline);
  CHECK(timelines.pipeline->ranks.size() == 2);
  CHECK(timelines.micro_batch.to_svg().find("<svg") == 0);
  CHECK(timelines.pipeline->to_svg().find("<svg") == 0);
  // All of the step but the reduction of gradients, which comes after the pipeline.
  double reduced = 0;
  for (const PredictedCollectives& row : best.step.communication) {
    if (row.mesh_dims.find("dp") != std::string::npos) reduced += row.seconds;
  }
  CHECK(timelines.pipeline->seconds == Approx(best.step.seconds() - reduced).epsilon(1e-3));
  ModuleLayouts none = best;
  none.stages = 1, none.schedule = "";
  none.mesh = {{"dp", 4}, {"tp", 1}};
  CHECK_FALSE(predict_module_timelines(make_blocks, sequences(), none, options).pipeline);
}

TEST_CASE("predict_module_layouts: errors", "[dtensor][predict_module_layouts]") {
  using Catch::Contains;
  const auto text = [](const std::function<void(ModuleLayouts&, SearchModuleLayoutsOptions&)>& change) {
    ModuleLayouts layouts{{{"dp", 2}, {"tp", 2}}, {}, {}, {}};
    SearchModuleLayoutsOptions options = searched(false);
    change(layouts, options);
    return error_text([&] { predict_module_layouts(make_blocks, sequences(), layouts, options); });
  };
  CHECK_THAT(text([](auto& l, auto&) { l.mesh[0].second = 32; }),
             Contains("[predict_module_layouts] the layouts divide 16 rows of a micro-batch among 32 ranks"));
  CHECK_THAT(text([](auto& l, auto&) { l.context_dim = "cp"; }),
             Contains("[predict_module_layouts] of the layouts 'mesh' has 2 dims"));
  CHECK_THAT(text([](auto& l, auto&) { l.stages = 2; }), Contains("[predict_module_layouts] of the layouts "));
  CHECK_THAT(text([](auto& l, auto&) { l.groups = {"nothing"}; }), Contains("'nothing' of a group matches no module"));
  CHECK_THAT(text([](auto& l, auto&) { l.micro_batches = 3; }), Contains("cannot be divided into 3 micro-batches"));
  const ModuleLayouts layouts{{{"dp", 2}, {"tp", 2}}, {}, {}, {}};
  for (const auto& predict : {+[](const ModuleLayouts& l) { predict_module_layouts(nullptr, {}, l, {}); },
                              +[](const ModuleLayouts& l) { predict_module_timelines(nullptr, {}, l, {}); }})
    CHECK_THAT(error_text([&] { predict(layouts); }), Contains("make is an empty function"));
}

}  // namespace
}  // namespace dtensor
