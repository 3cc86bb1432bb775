// search_module_layouts() with a mesh dim for sequences, with one for groups of fully_shard(), and with overlap;
// layouts that have them.
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/advise_module_layouts.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/context_parallel.h"
#include "dtensor/dtensor.h"
#include "dtensor/predict_step.h"
#include "dtensor/search_module_layouts.h"
#include "examples/models/llama.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::round_numbers;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int64_t kVocab = 32;

ModelWithLoss fused_llama(const ModelChoice& choice) {
  examples::LlamaConfig config;
  config.vocab = kVocab, config.width = 16, config.heads = 4, config.kv_heads = 2, config.hidden = 32;
  config.fused_attention = true, config.layers = choice.layers == 0 ? 2 : choice.layers;
  const auto model = std::make_shared<examples::LlamaImpl>(config);
  return {model, [model](const std::vector<Tensor>& in) {
            const Tensor scores = model->forward(in.at(0));
            return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in.at(1).view({-1}));
          }};
}

std::vector<Tensor> token_ids(int64_t batch, int64_t length) {
  return std::vector<Tensor>(2, torch::zeros({batch, length}, torch::kLong));
}

SearchModuleLayoutsOptions over_sequences() {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.context_sizes = {1, 2, 4};
  options.cost_model = round_numbers();
  options.cost_model->flops_per_second = 1e9;
  options.cost_model->ranks_per_node = 8;
  return options;
}

TEST_CASE("search_module_layouts: few long sequences are sharded by their length, many short ones by rows",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = over_sequences();
  const auto few = search_module_layouts(fused_llama, token_ids(1, 512), options);
  CAPTURE(few.explain());
  CHECK(few.best.mesh == NamedNumbers{{"dp", 1}, {"cp", 4}, {"tp", 1}});
  CHECK(few.best.context_dim == "cp");
  const auto many = search_module_layouts(fused_llama, token_ids(512, 8), options);
  CAPTURE(many.explain());
  CHECK(many.best.mesh == NamedNumbers{{"dp", 4}, {"cp", 1}, {"tp", 1}});
  options.context_sizes = {2};
  CHECK(search_module_layouts(fused_llama, token_ids(512, 8), options).best.mesh[1].second == 2);
}

// Both sizes of the mesh dim for sequences, written out.
TEST_CASE("search_module_layouts: a step over sharded sequences is predicted as a program runs it",
          "[dtensor][search_module_layouts]") {
  for (const bool load_balance : {false, true}) {
    SearchModuleLayoutsOptions options = over_sequences();
    options.context_options = {.method = ContextParallelMethod::kRing, .load_balance = load_balance};
    options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
    double least = 1e9;
    for (const int64_t size : options.context_sizes) {
      const DeviceMesh mesh(World::abstract(4), {4 / size, size, 1}, {"dp", "cp", "tp"});
      set_cost_model(mesh.world(), *options.cost_model);
      const MeshScope on_mesh(mesh);
      const ModelWithLoss made = fused_llama({});
      apply_layouts(*made.model, mesh, ModuleLayouts{{{"dp", 1}, {"tp", 1}}, {}, {}, {}});
      const Tensor ids = zeros({4, 256}, mesh, {Shard(0), Shard(1), Replicate()}, {.dtype = torch::kLong});
      const auto step = [&] {
        if (size == 1) return made.loss({ids, ids}).backward();
        const ContextParallel scope("cp", options.context_options);
        made.loss({ids, ids}).backward();
      };
      step();
      made.model->zero_grad();
      least = std::min(least, predict_step(step, mesh.world()).seconds());
    }
    const auto found = search_module_layouts(fused_llama, token_ids(4, 256), options);
    CAPTURE(load_balance, found.explain());
    CHECK(found.best.step.seconds() == Approx(least).epsilon(1e-9));
  }
}

TEST_CASE("search_module_layouts: sequences go with experts, pipelines, tensor parallelism and fully_shard()",
          "[dtensor][search_module_layouts]") {
  const auto make = [](const ModelChoice& choice) -> ModelWithLoss {
    examples::LlamaConfig config;
    config.vocab = kVocab, config.width = 16, config.heads = 4, config.kv_heads = 2, config.hidden = 32;
    config.fused_attention = true, config.experts = 4, config.layers = choice.layers;
    const auto model = std::make_shared<examples::LlamaImpl>(config);
    return {model, [model](const std::vector<Tensor>& in) {
              const Tensor scores = model->forward(in.at(0));
              return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in.at(1).view({-1}));
            }};
  };
  SearchModuleLayoutsOptions options = over_sequences();
  options.ranks = 16, options.layers = 4, options.stages = {1, 2}, options.max_steps = 20;
  options.context_sizes = {2}, options.expert_sizes = {2}, options.experts = {"blocks.*.experts"};
  options.between_layers = torch::empty({4, 64, 16}, at::kMeta);
  ModuleLayoutSearch found = search_module_layouts(make, token_ids(4, 64), options);
  CAPTURE(found.explain());
  REQUIRE(found.best.mesh.size() == 4);
  CHECK(found.best.mesh[1] == NamedNumbers::value_type{"ep", 2});
  CHECK(found.best.mesh[2] == NamedNumbers::value_type{"cp", 2});
  options.stages = {2};
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  found = search_module_layouts(make, token_ids(4, 64), options);
  for (const PredictedCollectives& row : found.best.step.communication) {
    if (row.mesh_dims == "pp") CHECK(row.bytes / row.count == 4 / 4 * (64 / 2) * 16 * 4);
  }
}

// The loss of fused_llama() for `rows` sequences of 8 tokens, whose ids are `sharded`, then the gradients of all
// parameters.
std::vector<Tensor> loss_and_gradients(const DeviceMesh& mesh, const ModuleLayouts& layouts, int64_t rows,
                                       const Placements& sharded) {
  torch::manual_seed(3);
  const ModelWithLoss made = fused_llama({});
  apply_layouts(*made.model, mesh, layouts);
  const Tensor ids = torch::arange(rows * 8).remainder(kVocab - 1).view({rows, 8});
  const MeshScope scope(mesh);
  const Tensor loss = made.loss({distribute_tensor(ids, mesh, sharded), distribute_tensor(ids + 1, mesh, sharded)});
  loss.backward();
  std::vector<Tensor> result{full_tensor(loss)};
  for (const Tensor& p : made.model->parameters()) result.push_back(full_tensor(p.grad()));
  return result;
}

void check_close(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(torch::allclose(found[i], expected[i], 1e-3, 1e-5));
}

TEST_CASE("apply_layouts: a model over sharded sequences has the loss and gradients of one rank",
          "[dtensor][module_layouts]") {
  ModuleLayouts layouts{{{"dp", 2}, {"cp", 2}, {"tp", 2}}, {}, {}, {}};
  layouts.context_dim = "cp";
  const Placements sharded = {Shard(0), Shard(1), Replicate()};
  const ContextParallel sequences("cp");
  const std::vector<Tensor> expected =
      loss_and_gradients(DeviceMesh(World::local(1), {1, 1, 1}, {"dp", "cp", "tp"}), layouts, 4, sharded);
  layouts.styles = examples::llama_styles(/*sequence=*/true);
  for (const bool overlap : {false, true}) {
    for (const auto& groups : {std::vector<std::string>(), {"blocks.*", ""}}) {
      CAPTURE(overlap, groups);
      layouts.groups = groups, layouts.overlap = overlap;
      const DeviceMesh mesh(World::local(8), {2, 2, 2}, {"dp", "cp", "tp"});
      check_close(loss_and_gradients(mesh, layouts, 4, sharded), expected);
    }
  }
}

// ------------------------------------------------------------ groups on some ranks

// Nodes of 4 ranks, and so much faster links within them that gathers over nodes are not worth their memory.
SearchModuleLayoutsOptions over_nodes() {
  SearchModuleLayoutsOptions options;
  options.ranks = 8;
  options.cost_model = round_numbers();
  options.cost_model->between_nodes.fill({1e-4, 0, 1e7});
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  return options;
}

TEST_CASE("search_module_layouts: groups are sharded within nodes, where that is enough memory",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = over_nodes();
  const std::vector<Tensor> ids = std::vector<Tensor>(2, torch::zeros({16, 8}, torch::kLong));
  options.max_bytes = search_module_layouts(testing::make_blocks, ids, options).best.step.peak_bytes * 4 / 5;
  const auto over_all = search_module_layouts(testing::make_blocks, ids, options).best;
  options.shard_sizes = {2, 4, 8};
  const auto hybrid = search_module_layouts(testing::make_blocks, ids, options);
  CAPTURE(over_all.name(), over_all.step.to_string(), hybrid.explain(), hybrid.best.step.to_string());
  CHECK(hybrid.best.mesh == NamedNumbers{{"dp", 2}, {"fsdp", 4}, {"tp", 1}});
  CHECK(hybrid.best.shard_dim == "fsdp");
  CHECK_FALSE(hybrid.best.groups.empty());
  CHECK(hybrid.best.step.seconds() < over_all.step.seconds());
  for (const PredictedCollectives& row : hybrid.best.step.communication) {
    if (row.collective == Collective::kAllGather) CHECK(row.name() == "all_gather(fsdp)");
  }
}

TEST_CASE("apply_layouts: groups over a mesh dim of their own have copies over the data dim",
          "[dtensor][module_layouts]") {
  const DeviceMesh mesh(World::local(8), {2, 2, 2}, {"dp", "fsdp", "tp"});
  ModuleLayouts layouts{{{"dp", 2}, {"fsdp", 2}, {"tp", 2}}, {}, {"blocks.*", ""}, {}};
  layouts.shard_dim = "fsdp";
  const Placements sharded = {Shard(0), Shard(0), Replicate()};
  const DeviceMesh one(World::local(1), {1, 1, 1}, {"dp", "fsdp", "tp"});
  check_close(loss_and_gradients(mesh, layouts, 8, sharded), loss_and_gradients(one, layouts, 8, sharded));
  const ModelWithLoss made = fused_llama({});
  apply_layouts(*made.model, mesh, layouts);
  const auto placements = DTensor(made.model->named_parameters()["blocks.0.wq.weight"]).placements();
  CHECK(placements == Placements{Replicate(), Shard(0), Replicate()});
}

// ------------------------------------------------------------ overlap

TEST_CASE("search_module_layouts: with overlap groups are gathered ahead and gradients reduced in backward",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = testing::slow_ranks();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("dp") > 1; };
  const auto one_by_one = search_module_layouts(testing::make_blocks, testing::sequences(), options);
  options.overlap = true;
  const auto overlapped = search_module_layouts(testing::make_blocks, testing::sequences(), options);
  CAPTURE(one_by_one.explain(), overlapped.explain());
  CHECK_FALSE(one_by_one.best.overlap);
  CHECK(one_by_one.best.step.overlapped_seconds == 0);
  CHECK(overlapped.best.overlap);
  CHECK(overlapped.best.step.overlapped_seconds > 0);
  CHECK(overlapped.best.step.seconds() < one_by_one.best.step.seconds());
  CHECK(overlapped.best.name().find(" overlap") != std::string::npos);
}

TEST_CASE("advise_module_layouts: overlap is a change", "[dtensor][search_module_layouts]") {
  const SearchModuleLayoutsOptions options = testing::slow_ranks();
  const ModuleLayouts now{{{"dp", 4}, {"tp", 1}}, {}, {"blocks.*", ""}, {}};
  const LayoutAdvice advice = advise_module_layouts(testing::make_blocks, testing::sequences(), now, options);
  CAPTURE(advice.explain());
  const auto found = absl::c_find_if(advice.changes, [](const auto& change) { return change.what == "overlap"; });
  REQUIRE(found != advice.changes.end());
  CHECK(found->reason.find("overlapped") != std::string::npos);
}

TEST_CASE("advise_module_layouts: layouts with overlap are compared with others that have it",
          "[dtensor][search_module_layouts]") {
  ModuleLayouts now{{{"dp", 2}, {"tp", 2}}, {}, {"blocks.*", ""}, {}};  // without styles, which are better
  now.overlap = true;
  const LayoutAdvice advice =
      advise_module_layouts(testing::make_blocks, testing::sequences(), now, testing::slow_ranks());
  CAPTURE(advice.explain());
  CHECK(advice.best.overlap);
  CHECK(advice.best.step.seconds() < advice.now.step.seconds());
  SearchModuleLayoutsOptions with_overlap = testing::slow_ranks();
  with_overlap.overlap = true;
  const ModuleLayouts found = search_module_layouts(testing::make_blocks, testing::sequences(), with_overlap).best;
  CHECK(advice.best.step.seconds() == Approx(found.step.seconds()));
}

TEST_CASE("search_module_layouts: of a model of many layers no more overlaps than is communicated",
          "[dtensor][search_module_layouts]") {
  internal::PhasedStep two, three;
  two.step.communication = {{Collective::kAllGather, "dp", false, 2, 20, 2}};
  three.step.communication = {{Collective::kAllGather, "dp", false, 3, 30, 3}};
  two.step.product_seconds = 2, three.step.product_seconds = 3;
  two.step.overlapped_seconds = 0.5, three.step.overlapped_seconds = 2.5;  // the links have caught up
  const StepPrediction all = internal::step_of_layers(two, three, 10).step;
  CHECK(all.communication_seconds() == Approx(10));
  CHECK(all.overlapped_seconds == Approx(10));
  CHECK(all.seconds() == Approx(10));
}

TEST_CASE("search_module_layouts: errors of sequences", "[dtensor][search_module_layouts]") {
  using Catch::Contains;
  const auto text = [](const std::vector<Tensor>& inputs, const std::function<void(SearchModuleLayoutsOptions&)>& set) {
    SearchModuleLayoutsOptions options = over_sequences();
    set(options);
    return error_text([&] { search_module_layouts(fused_llama, inputs, options); });
  };
  const auto ids = token_ids(4, 8);
  CHECK_THAT(text(ids, [](auto& o) { o.context_sizes = {3}; }), Contains("context_sizes has 3, which does not divide"));
  CHECK_THAT(text(ids, [](auto& o) { o.shard_sizes = {3}; }), Contains("shard_sizes has 3, which does not divide"));
  CHECK_THAT(text(ids, [](auto& o) { o.shard_sizes = {2}, o.shard_dim = "dp"; }), Contains("'dp' is the name of two"));
  CHECK_THAT(text(ids, [](auto& o) { o.context_dim = ""; }),
             Contains("there are context_sizes and the name of their mesh dim is empty"));
  CHECK_THAT(text(ids, [](auto& o) { o.context_dim = "tp"; }), Contains("'tp' is the name of two mesh dims"));
  CHECK_THAT(text({torch::zeros({4})}, [](auto&) {}), Contains("none of the 1 inputs has two dims"));
  CHECK_THAT(text(token_ids(4, 2), [](auto& o) { o.context_sizes = {4}; }), Contains("'cp' than dim 1 of an input"));
}

}  // namespace
}  // namespace dtensor
