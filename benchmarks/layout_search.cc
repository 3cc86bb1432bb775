// How long search_module_layouts() takes for large models on many imaginary ranks.
//
//   ./bazelw run //benchmarks:layout_search
//   ./bazelw run //benchmarks:layout_search -- --only 405B --explain
//
// The models have the sizes and about the batches that their authors published, in bfloat16 with AdamW, on imaginary
// H100s, with tensor parallelism within a node. Each layer computes its activations again in backward, or does not.
// Llama 3 405B is searched with pipelines, too, and compared with the layouts that were published (arXiv 2407.21783,
// table 4), under the same model: with and without fully_shard(), as theirs gathers parameters once a step, and with
// and without activations that are computed again, as theirs keeps less of them. Mixtral's batch is a guess; its
// experts are within a node, or all of them on each rank.
#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/gates.h"
#include "dtensor/predict_module_layouts.h"
#include "dtensor/search_module_layouts.h"
#include "examples/models/dlrm.h"
#include "examples/models/searched_llama.h"
#include "examples/models/vision.h"
#include "mesh/device_mesh.h"
#include "plan/known_clusters.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the models whose names contain this");
ABSL_FLAG(bool, explain, false, "print what each search found");
ABSL_FLAG(int64_t, max_steps, 5000, "that a search may run");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;
using torch::Tensor;
namespace F = torch::nn::functional;

struct SearchedModel {
  std::string name;
  int64_t ranks;
  MakeModel make;
  int64_t layers;
  std::vector<int64_t> micro_batches;
  std::vector<Tensor> inputs;
  double gate_seconds;
  std::vector<int64_t> stages = {1};
  Tensor between_layers = {};
  std::vector<ModuleLayouts> published = {};
  bool within_nodes = true;  // tensor parallelism and experts are, and layers may compute their activations again
  std::vector<int64_t> expert_sizes = {};
  std::vector<int64_t> again = {0, 1};  // whether layers compute their activations again, in the order of the search
};

SearchedModel llama(const std::string& name, const examples::LlamaConfig& config, int64_t ranks, int64_t batch,
                    int64_t length, std::vector<int64_t> micro_batches) {
  return {name,
          ranks,
          examples::searched_llama(config),
          config.layers,
          std::move(micro_batches),
          examples::token_ids(batch, length),
          60};
}

// With pipelines, and the published layouts of `data` x 8 ranks in 16 stages, of one sequence a micro-batch.
SearchedModel llama_in_pipelines(const std::string& name, const examples::LlamaConfig& config, int64_t ranks,
                                 int64_t data) {
  constexpr int64_t kBatch = 2048, kLength = 8192, kStages = 16;
  SearchedModel model = llama(name, config, ranks, kBatch, kLength, {1, 8, kBatch / data});
  model.stages = {1, 8, kStages, 4 * kStages};  // interleaved 4 on each pipeline rank
  model.between_layers = examples::between_layers(config, kBatch, kLength);
  for (const int64_t again : {0, 1}) {
    for (const auto& groups : {std::vector<std::string>(), std::vector<std::string>{"blocks.*", ""}}) {
      ModuleLayouts layouts{{{"dp", data}, {"tp", 8}}, examples::llama_styles(/*sequence=*/true), groups, {}};
      layouts.settings = {{"checkpoint", again}};
      layouts.micro_batches = kBatch / data;
      layouts.stages = kStages, layouts.schedule = "1F1B";
      model.published.push_back(std::move(layouts));
    }
  }
  return model;
}

SearchedModel mixtral(const std::string& name, const examples::LlamaConfig& config, int64_t ranks, int64_t batch,
                      int64_t length, std::vector<int64_t> expert_sizes) {
  SearchedModel model = llama(name, config, ranks, batch, length, {1});
  model.expert_sizes = std::move(expert_sizes);
  model.again = {1, 0};  // nothing fits without, and styles that fit are tried on the other meshes first
  return model;
}

SearchedModel vit(const std::string& name, const examples::ViTConfig& config, int64_t ranks, int64_t batch,
                  std::vector<int64_t> micro_batches) {
  const auto make = [config](const ModelChoice& choice) -> ModelWithLoss {
    examples::ViTConfig chosen = config;
    chosen.layers = choice.layers;
    auto model = std::make_shared<examples::ViTImpl>(chosen);
    model->to(torch::kBFloat16);
    return {model, [model, choice](const std::vector<Tensor>& in) {
              const auto block = [model](size_t i, const Tensor& x) {
                return model->blocks[i]->as<examples::ViTBlock>()->forward(x);
              };
              const Tensor x = examples::through_layers(choice, model->blocks->size(), model->embedded(in[0]), block);
              return F::cross_entropy(model->scores(x), in[1]);
            }};
  };
  const auto meta = torch::device(at::kMeta);
  return {name,
          ranks,
          make,
          config.layers,
          std::move(micro_batches),
          {torch::empty({batch, 3, config.image, config.image}, meta.dtype(torch::kBFloat16)),
           torch::empty({batch}, meta.dtype(torch::kLong))},
          60};
}

// Tables of 10^9 rows together, which only all ranks can hold: 512 GB, as much for their gradients, and twice that for
// the optimizer.
SearchedModel dlrm() {
  examples::DLRMConfig config;
  config.tables = 25, config.rows = 40000000, config.width = 128, config.hidden = 512;
  constexpr int64_t kBatch = 65536, kIdsOfSample = 10;
  const auto make = [config](const ModelChoice&) -> ModelWithLoss {
    const auto model = std::make_shared<examples::DLRMImpl>(config);
    return {model, [model](const std::vector<Tensor>& in) {
              return F::binary_cross_entropy_with_logits(model->forward(in[0], in[1]), in[2]);
            }};
  };
  const auto meta = torch::device(at::kMeta);
  SearchedModel searched{
      "DLRM of 10^9 rows on 64 ranks",
      64,
      make,
      0,
      {1},
      {torch::empty({kBatch, config.dense}, meta),
       torch::empty({kBatch, config.tables, kIdsOfSample}, meta.dtype(torch::kLong)), torch::empty({kBatch}, meta)},
      60};
  searched.within_nodes = false;
  return searched;
}

std::vector<SearchedModel> models() {
  examples::LlamaConfig small, large;
  small.vocab = large.vocab = 128256;
  small.width = 4096, small.heads = 32, small.kv_heads = 8, small.hidden = 14336, small.layers = 32;
  large.width = 16384, large.heads = 128, large.kv_heads = 8, large.hidden = 53248, large.layers = 126;
  examples::LlamaConfig experts;
  experts.vocab = 32768, experts.experts = 8, experts.choices = 2;
  experts.width = 6144, experts.heads = 48, experts.kv_heads = 8, experts.hidden = 16384, experts.layers = 56;
  examples::ViTConfig vit22;
  vit22.image = 224, vit22.patch = 14, vit22.width = 6144, vit22.heads = 48, vit22.layers = 48, vit22.classes = 1000;
  return {llama("Llama 3 8B on 64 ranks", small, 64, 512, 8192, {8, 16}),
          llama("Llama 3 405B on 16,384 ranks", large, 16384, 2048, 8192, {1}),
          llama_in_pipelines("Llama 3 405B with pipelines on 8,192 ranks", large, 8192, 64),
          llama_in_pipelines("Llama 3 405B with pipelines on 16,384 ranks", large, 16384, 128),
          mixtral("Mixtral 8x22B on 1,024 ranks", experts, 1024, 1024, 4096, {1, 2, 4, 8}),
          mixtral("Mixtral 8x22B, all experts on each rank, on 1,024 ranks", experts, 1024, 1024, 4096, {1}),
          vit("ViT-22B on 1,024 ranks", vit22, 1024, 65536, {1, 4}),
          dlrm()};
}

std::string text_of(const ModuleLayouts& layouts) {
  return absl::StrFormat("%s: %.3g s a step, of which bubble %.3g s, %.3g GB", layouts.name(), layouts.step.seconds(),
                         layouts.step.bubble_seconds, static_cast<double>(layouts.step.peak_bytes) / 1e9);
}

// The search is not worse than each of the published layouts that fit.
void compare_published(const SearchedModel& m, const SearchModuleLayoutsOptions& options, const ModuleLayouts& best,
                       Gates& gates) {
  for (const ModuleLayouts& layouts : m.published) {
    const ModuleLayouts published = predict_module_layouts(m.make, m.inputs, layouts, options);
    std::printf("published %s\n    found %s\n", text_of(published).c_str(), text_of(best).c_str());
    const std::string what = absl::StrCat("seconds a step, published by found: ", published.name());
    const double ratio = published.step.seconds() / best.step.seconds();
    if (published.step.peak_bytes > options.max_bytes) {
      gates.note({what + ", which does not fit"}, ratio);
    } else {
      gates.at_least(what, ratio, 1);
    }
  }
}

int run() {
  Gates gates;
  for (const SearchedModel& m : models()) {
    if (m.name.find(absl::GetFlag(FLAGS_only)) == std::string::npos) continue;
    const Cluster h100 = cluster("h100x8");
    SearchModuleLayoutsOptions options;
    options.ranks = m.ranks;
    if (m.within_nodes) {
      options.allows = [&](const DeviceMesh& mesh) { return mesh.size() / mesh.size("dp") <= h100.ranks_per_node; };
      options.settings = {{"checkpoint", m.again}};
    }
    options.expert_sizes = m.expert_sizes;
    if (!m.expert_sizes.empty()) options.experts = {"blocks.*.experts"};
    options.optimizer = [](std::vector<Tensor> parameters) {
      return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);
    };
    options.micro_batches = m.micro_batches;
    options.layers = m.layers;
    options.stages = m.stages, options.between_layers = m.between_layers;
    options.schedules = {"1F1B", "interleaved 1F1B"}, options.stages_per_rank = 4;
    options.max_bytes = h100.memory_bytes;
    options.cost_model = h100.cost_model();
    options.max_steps = absl::GetFlag(FLAGS_max_steps);
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    options.progress = [&](int64_t steps, double seconds) {
      std::fprintf(stderr, "\r%s: %lld steps, %.0f s, best %.3g s a step ", m.name.c_str(),
                   static_cast<long long>(steps), since(), seconds);
    };
    const ModuleLayoutSearch found = search_module_layouts(m.make, m.inputs, options);
    std::fputc('\n', stderr);
    gates.at_most(absl::StrCat("seconds to search: ", m.name, ", ", found.steps, " steps"), since(), m.gate_seconds);
    if (absl::GetFlag(FLAGS_explain))
      std::printf("%s%s\n", found.explain().c_str(), found.best.step.to_string().c_str());
    compare_published(m, options, found.best, gates);
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("layout_search", "Searches layouts of large models on imaginary ranks.", argc, argv, run);
}
