// search_module_layouts() with a mesh dim for experts, and layouts that have one.
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/advise_module_layouts.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/dtensor.h"
#include "dtensor/predict_step.h"
#include "dtensor/search_module_layouts.h"
#include "examples/models/llama.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::round_numbers;
using torch::Tensor;
namespace nn = torch::nn;

// Four experts of two each for every token.
struct RoutedImpl : nn::Module {
  RoutedImpl(int64_t width, int64_t hidden)
      : router(register_module("router", nn::Linear(nn::LinearOptions(width, 4).bias(false)))) {
    examples::LlamaConfig config;
    config.width = width, config.hidden = hidden, config.experts = 4;
    experts = register_module("experts", examples::LlamaExperts(config));
  }
  Tensor forward(const Tensor& x) {
    const auto [scores, ids] = router(x).topk(2, -1);
    return experts(x, torch::softmax(scores, -1), ids);
  }
  nn::Linear router;
  examples::LlamaExperts experts{nullptr};
};

MakeModel routed(int64_t width, int64_t hidden) {
  return [=](const ModelChoice&) -> ModelWithLoss {
    const auto model = std::make_shared<RoutedImpl>(width, hidden);
    return {model, [model](const std::vector<Tensor>& in) { return model->forward(in.at(0)).square().mean(); }};
  };
}

SearchModuleLayoutsOptions over_experts() {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.expert_sizes = {1, 2, 4};
  options.experts = {"experts"};
  options.cost_model = round_numbers();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  return options;
}

PredictedCollectives row_of(const StepPrediction& step, Collective c, const std::string& dims) {
  for (const PredictedCollectives& row : step.communication) {
    if (row.collective == c && row.mesh_dims == dims) return row;
  }
  return {};
}

TEST_CASE("search_module_layouts: experts are on as many ranks as their weights or the tokens ask for",
          "[dtensor][search_module_layouts]") {
  constexpr int64_t kWidth = 16, kHidden = 256;
  const SearchModuleLayoutsOptions options = over_experts();
  // 64 rows of 16 numbers travel three times, the tokens having no gradients; against 48 K weights' gradients.
  const auto few = search_module_layouts(routed(kWidth, kHidden), {torch::empty({8, 4, kWidth}, at::kMeta)}, options);
  CAPTURE(few.explain());
  CHECK(few.best.mesh == NamedNumbers{{"dp", 1}, {"ep", 4}, {"tp", 1}});
  CHECK(few.best.experts == options.experts);
  const PredictedCollectives rows = row_of(few.best.step, Collective::kAllToAll, "ep");
  CHECK(rows.count == 3);
  CHECK(rows.bytes == 3 * (8 * 2 * 3 / 4) * kWidth * 4);
  CHECK(row_of(few.best.step, Collective::kAllGather, "ep").bytes == 3 * 5 * 8);  // of the counts
  CHECK(few.best.memory.parameters == (3 * kWidth * kHidden + kWidth * 4) * 4);   // an expert and the router
  SearchModuleLayoutsOptions up_to_two = options;
  up_to_two.expert_sizes = {1, 2};
  const auto halves =
      search_module_layouts(routed(kWidth, kHidden), {torch::empty({8, 4, kWidth}, at::kMeta)}, up_to_two);
  CHECK(halves.best.mesh == NamedNumbers{{"dp", 2}, {"ep", 2}, {"tp", 1}});
  // Rows of 2,048 tokens for each rank against weights of four experts, as many numbers as 6 tokens have.
  const auto many = search_module_layouts(routed(kWidth, 1), {torch::empty({8, 1024, kWidth}, at::kMeta)}, options);
  CAPTURE(many.explain());
  CHECK(many.best.mesh == NamedNumbers{{"dp", 4}, {"ep", 1}, {"tp", 1}});
  CHECK(row_of(many.best.step, Collective::kAllToAll, "ep").count == 0);
}

// Which of the three sizes is fastest, written out.
TEST_CASE("search_module_layouts: the best size of the experts' dim is that of all steps as a program runs them",
          "[dtensor][search_module_layouts]") {
  for (const int64_t hidden : {8, 64, 512}) {
    const auto make = routed(16, hidden);
    const SearchModuleLayoutsOptions options = over_experts();
    const ModuleLayoutSearch found = search_module_layouts(make, {torch::empty({8, 32, 16}, at::kMeta)}, options);
    double least = 1e9;
    for (const int64_t size : options.expert_sizes) {
      for (const auto& groups : {std::vector<std::string>(), {""}}) {
        const DeviceMesh mesh(World::abstract(4), {4 / size, size, 1}, {"dp", "ep", "tp"});
        set_cost_model(mesh.world(), *options.cost_model);
        const MeshScope on_mesh(mesh);
        const ModelWithLoss made = make({});
        ModuleLayouts layouts{{{"dp", 1}, {"ep", 1}, {"tp", 1}}, {}, groups, {}};
        layouts.experts = options.experts;
        apply_layouts(*made.model, mesh, layouts);
        const Tensor x = zeros({8, 32, 16}, mesh, {Shard(0), Shard(0), Replicate()});
        const auto step = [&] { made.loss({x}).backward(); };
        step();
        made.model->zero_grad();
        least = std::min(least, predict_step(step, mesh.world()).seconds());
      }
    }
    CAPTURE(hidden, found.explain());
    CHECK(found.best.step.seconds() == Approx(least).epsilon(1e-9));
  }
}

TEST_CASE("advise_module_layouts: a better size of the experts' dim is a change", "[dtensor][search_module_layouts]") {
  ModuleLayouts now{{{"dp", 4}, {"ep", 1}, {"tp", 1}}, {}, {}, {}};
  now.experts = {"experts"};
  const std::vector<Tensor> batch = {torch::empty({8, 4, 16}, at::kMeta)};
  const LayoutAdvice advice = advise_module_layouts(routed(16, 256), batch, now, over_experts());
  CAPTURE(advice.explain());
  REQUIRE_FALSE(advice.changes.empty());
  CHECK(advice.changes[0].what == "the mesh dp=1 ep=4 tp=1");
  CHECK(advice.best.mesh == NamedNumbers{{"dp", 1}, {"ep", 4}, {"tp", 1}});
  now.mesh = {{"dp", 4}, {"tp", 1}};
  CHECK_THAT(error_text([&] { advise_module_layouts(routed(16, 256), batch, now, over_experts()); }),
             Catch::Contains("expected the mesh dims 'dp' and 'ep' and 'tp', in this order, of 4 ranks together"));
  now.mesh = {{"dp", 4}, {"ep", 1}, {"tp", 1}};
  now.experts = {};
  CHECK_THAT(error_text([&] { advise_module_layouts(routed(16, 256), batch, now, over_experts()); }),
             Catch::Contains("give both the same patterns"));
}

MakeModel small_mixtral() {
  return [](const ModelChoice& choice) -> ModelWithLoss {
    examples::LlamaConfig config;
    config.vocab = 32, config.width = 16, config.heads = 4, config.kv_heads = 2, config.hidden = 32;
    config.experts = 4, config.layers = choice.layers;
    const auto model = std::make_shared<examples::LlamaImpl>(config);
    return {model, [model](const std::vector<Tensor>& in) {
              const Tensor scores = model->forward(in.at(0));
              return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in.at(1).view({-1}));
            }};
  };
}

TEST_CASE("search_module_layouts: experts go with tensor parallelism, pipelines and fully_shard()",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = over_experts();
  options.ranks = 8, options.layers = 4, options.micro_batches = {1, 2};
  options.experts = {"blocks.*.experts"};
  options.expert_sizes = {2, 4};
  options.between_layers = torch::empty({16, 8, 16}, at::kMeta);
  options.max_steps = 20;
  const Tensor ids = torch::zeros({16, 8}, torch::kLong);
  ModuleLayoutSearch found;
  const auto search = [&] {
    found = search_module_layouts(small_mixtral(), {ids, ids}, options);
    CAPTURE(found.explain());
    CHECK(found.best.mesh[1].second >= 2);
    for (const StyleGain& gain : found.gains) {
      for (const std::string& pattern : gain.patterns) CHECK(pattern != "blocks.*.experts");
    }
  };
  const auto without_tensor_dim = std::exchange(options.allows, nullptr);
  options.stages = {2};
  search();
  CHECK(found.best.stages == 2);
  options.allows = without_tensor_dim;
  search();
  const PredictedCollectives permutes = row_of(found.best.step, Collective::kPermute, "pp");
  REQUIRE(permutes.count > 0);  // each of a micro-batch of a rank's rows
  CHECK(permutes.bytes / permutes.count == 16 / found.best.micro_batches / 4 * 8 * 16 * 4);
  options.stages = {1};
  search();
  const ModuleLayouts fastest = found.best;
  CHECK(fastest.groups.empty());
  options.max_bytes = fastest.step.peak_bytes * 9 / 10;
  search();
  CHECK_FALSE(found.best.groups.empty());
  CHECK(found.best.step.seconds() >= fastest.step.seconds());
}

// The loss, then the gradients of all parameters.
std::vector<Tensor> one_step(const DeviceMesh& mesh, const ModuleLayouts& layouts) {
  torch::manual_seed(3);
  const ModelWithLoss made = small_mixtral()({1, {}});
  apply_layouts(*made.model, mesh, layouts);
  const Tensor ids = torch::arange(8 * 6).remainder(31).view({8, 6});
  const auto on_mesh = [&](const Tensor& t) { return distribute_tensor(t, mesh, {Shard(0), Shard(0), Replicate()}); };
  const MeshScope scope(mesh);
  const Tensor loss = made.loss({on_mesh(ids), on_mesh(ids + 1)});
  loss.backward();
  std::vector<Tensor> result{full_tensor(loss)};
  for (const Tensor& p : made.model->parameters()) {
    CHECK(DTensor(p.grad()).placements() == DTensor(p).placements());
    result.push_back(full_tensor(p.grad()));
  }
  return result;
}

TEST_CASE("apply_layouts: a model with experts has the loss and gradients of one rank", "[dtensor][module_layouts]") {
  ModuleLayouts layouts{{{"dp", 2}, {"ep", 2}, {"tp", 1}}, {}, {}, {}};
  layouts.experts = {"blocks.*.experts"};
  const std::vector<Tensor> expected = one_step(DeviceMesh(World::local(1), {1, 1, 1}, {"dp", "ep", "tp"}), layouts);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 4, 1}, {2, 2, 1}, {1, 2, 2}}) {
    for (const auto& groups : {std::vector<std::string>(), {"blocks.*", ""}}) {
      CAPTURE(shape, groups);
      layouts.groups = groups;
      const std::vector<Tensor> found = one_step(DeviceMesh(World::local(4), shape, {"dp", "ep", "tp"}), layouts);
      REQUIRE(found.size() == expected.size());
      for (size_t i = 0; i < found.size(); ++i) CHECK(torch::allclose(found[i], expected[i], 1e-3, 1e-5));
    }
  }
}

TEST_CASE("apply_layouts: weights of experts are sharded by expert, and in groups by their rows",
          "[dtensor][module_layouts]") {
  const DeviceMesh mesh(World::abstract(8), {2, 2, 2}, {"dp", "ep", "tp"});
  const MeshScope on_mesh(mesh);
  ModuleLayouts layouts{{{"dp", 2}, {"ep", 2}, {"tp", 2}}, {{{"blocks.*.wq", ColwiseParallel()}}}, {}, {}};
  layouts.experts = {"blocks.*.experts"};
  const auto placed = [&] {
    const ModelWithLoss made = small_mixtral()({2, {}});
    apply_layouts(*made.model, mesh, layouts);
    const auto parameters = made.model->named_parameters();
    return std::vector<Placements>{DTensor(parameters["blocks.1.experts.up"]).placements(),
                                   DTensor(parameters["blocks.1.wq.weight"]).placements(),
                                   DTensor(parameters["blocks.1.router.weight"]).placements()};
  };
  const Placement s = Shard(0), r = Replicate();
  CHECK(placed() == std::vector<Placements>{{r, s, r}, {r, r, s}, {r, r, r}});
  layouts.groups = {"blocks.*"};
  CHECK(placed() == std::vector<Placements>{{Shard(1), s, r}, {StridedShard(0, 2), r, s}, {s, r, r}});
}

TEST_CASE("apply_layouts: a module inside of experts has a group of its own, and one around them gets what is left",
          "[dtensor][module_layouts]") {
  struct Moe : torch::nn::Module {
    Moe() {
      register_parameter("up", torch::empty({4, 6, 8}));
      register_module("shared", torch::nn::Linear(6, 8));
    }
  };
  struct Model : torch::nn::Module {
    Model() { register_module("moe", std::make_shared<Moe>()); }
  };
  const DeviceMesh mesh(World::abstract(4), {2, 2, 1}, {"dp", "ep", "tp"});
  const MeshScope on_mesh(mesh);
  Model model;
  ModuleLayouts layouts{{{"dp", 2}, {"ep", 2}, {"tp", 1}}, {}, {}, {}};
  layouts.experts = {"moe"};
  layouts.groups = {"moe.shared", ""};  // nothing is left for the root
  apply_layouts(model, mesh, layouts);
  const auto parameters = model.named_parameters();
  CHECK(DTensor(parameters["moe.up"]).placements() == Placements{Shard(1), Shard(0), Replicate()});
  CHECK(DTensor(parameters["moe.shared.weight"]).placements() == Placements{Shard(0), Replicate(), Replicate()});
}

TEST_CASE("search_module_layouts: patterns of experts match all modules at one place of repeated layers",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = over_experts();
  const Tensor ids = torch::zeros({16, 8}, torch::kLong);
  const auto text = [&](const std::string& pattern, int64_t layers) {
    options.experts = {pattern}, options.layers = layers;
    return error_text([&] { search_module_layouts(small_mixtral(), {ids, ids}, options); });
  };
  CHECK_THAT(
      text("blocks.1.experts", 3),
      Catch::Contains("experts match 'blocks.1.experts' and not 'blocks.0.experts', which is at the same place"));
  CHECK_THAT(text("blocks.4.experts", 5), Catch::Contains("match 'blocks.4.experts' and not 'blocks.0.experts'"));
}

TEST_CASE("search_module_layouts: errors of experts", "[dtensor][search_module_layouts]") {
  using Catch::Contains;
  const auto text = [](const std::function<void(SearchModuleLayoutsOptions&)>& change) {
    SearchModuleLayoutsOptions options = over_experts();
    change(options);
    return error_text([&] { search_module_layouts(routed(16, 8), {torch::empty({8, 4, 16}, at::kMeta)}, options); });
  };
  CHECK_THAT(text([](auto& o) { o.expert_sizes = {}; }), Contains("no expert_sizes to try"));
  CHECK_THAT(text([](auto& o) { o.expert_sizes = {3}; }), Contains("has 3, which does not divide 4 ranks"));
  CHECK_THAT(text([](auto& o) { o.expert_dim = "dp"; }), Contains("'dp' is the name of two mesh dims"));
  CHECK_THAT(text([](auto& o) { o.experts = {"expert"}; }), Contains("'expert' of experts matches no module"));
  CHECK_THAT(text([](auto& o) { o.experts = {""}; }), Contains("has no parameters of its own"));
  CHECK_THAT(text([](auto& o) { o.expert_dim = "experts"; }), Contains("no dim is named ep"));
  CHECK_THAT(text([](auto& o) { o.micro_batches = {4}; }),
             Contains("the data dim 'dp' times 'ep' is larger than a micro-batch of the 8 rows"));
  const DeviceMesh mesh(World::abstract(4), {4, 1}, {"dp", "tp"});
  ModuleLayouts layouts{{{"dp", 4}, {"tp", 1}}, {}, {}, {}};
  layouts.experts = {"experts"};
  RoutedImpl model(16, 8);
  CHECK_THAT(error_text([&] { apply_layouts(model, mesh, layouts); }), Contains("'mesh' no dim for them"));
}

}  // namespace
}  // namespace dtensor
