// Chooses the layouts of a Llama, or of a Mixtral with --experts, on a cluster that need not be there: the mesh,
// parallel styles, fully_shard(), activations kept or computed again, micro-batches and the pipeline. Writes them as
// JSON for apply_layouts(), and draws the step.
//
//   ./bazelw run //examples:choose_layouts -- --layers 32 --width 4096 --heads 32 --kv_heads 8 --hidden 14336 \
//       --vocab 128256 --batch 512 --length 8192 --ranks 64 --cluster h100x8 --micro_batches 8,16 --explain \
//       --save layouts.json --svg step.svg
//   ./bazelw run //examples:choose_layouts -- ... --predict layouts.json     # of these layouts alone

#include <torch/nn.h>
#include <torch/optim.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/predict_module_layouts.h"
#include "dtensor/search_module_layouts.h"
#include "examples/models/searched_llama.h"
#include "plan/known_clusters.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, layers, 32, "transformer blocks");
ABSL_FLAG(int64_t, width, 4096, "hidden size");
ABSL_FLAG(int64_t, heads, 32, "attention heads; must divide the width");
ABSL_FLAG(int64_t, kv_heads, 8, "heads of keys and values; must divide the heads");
ABSL_FLAG(int64_t, hidden, 14336, "of the feed-forward layers");
ABSL_FLAG(int64_t, vocab, 128256, "tokens");
ABSL_FLAG(int64_t, experts, 0, "feed-forward layers of each block, of which a token takes two; 0: one for all tokens");
ABSL_FLAG(int64_t, batch, 512, "sequences of a step");
ABSL_FLAG(int64_t, length, 8192, "tokens of a sequence");
ABSL_FLAG(int64_t, ranks, 64, "devices");
ABSL_FLAG(std::string, cluster, "h100x8", "a name that cluster() knows, or a file ending in .json");
ABSL_FLAG(std::string, micro_batches, "1", "numbers of micro-batches to try, as 1,4,8");
ABSL_FLAG(std::string, stages, "1", "numbers of stages of a pipeline to try; 1: none");
ABSL_FLAG(std::string, shard_sizes, "",
          "numbers of ranks of a mesh dim for fully_shard() alone to try (hybrid sharding)");
ABSL_FLAG(std::string, context_sizes, "", "numbers of ranks of a mesh dim for sequences to try");
ABSL_FLAG(std::string, expert_sizes, "", "numbers of ranks of a mesh dim for experts to try");
ABSL_FLAG(bool, overlap, false, "gather parameters ahead, and reduce gradients while backward goes on");
ABSL_FLAG(std::string, memory, "", "of a rank, as 70GiB; by default that of the cluster's devices");
ABSL_FLAG(int64_t, max_steps, 5000, "choices to try at most");
ABSL_FLAG(bool, explain, false, "print what each style saves, and the nearest alternatives");
ABSL_FLAG(std::string, predict, "", "predict the layouts of this file, instead of a search");
ABSL_FLAG(std::string, save, "", "write the layouts to this file, for ModuleLayouts::load()");
ABSL_FLAG(std::string, svg, "",
          "draw forward and backward of a micro-batch on a rank, with its memory, into this file");
ABSL_FLAG(std::string, pipeline_svg, "", "draw the stages of the pipeline over time into this file");

namespace {

using namespace dtensor;
using tools::UsageError;

std::vector<int64_t> numbers(const char* flag, const std::string& text) {
  const std::vector<int64_t> values = tools::parse_sizes(flag, text);
  for (const int64_t value : values) {
    if (value < 1) throw UsageError(absl::StrCat("--", flag, " ", text, ": ", value, " is not at least 1"));
  }
  return values;
}

examples::LlamaConfig model_of_flags() {
  examples::LlamaConfig config;
  config.vocab = absl::GetFlag(FLAGS_vocab), config.width = absl::GetFlag(FLAGS_width);
  config.heads = absl::GetFlag(FLAGS_heads), config.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  config.hidden = absl::GetFlag(FLAGS_hidden), config.layers = absl::GetFlag(FLAGS_layers);
  config.experts = absl::GetFlag(FLAGS_experts);
  const auto divides = [](int64_t size, int64_t by) { return by >= 1 && size >= 1 && size % by == 0; };
  if (!divides(config.width, 2 * config.heads))
    throw UsageError(absl::StrCat("--heads ", config.heads, " do not divide --width ", config.width, " evenly by two"));
  if (!divides(config.heads, config.kv_heads))
    throw UsageError(absl::StrCat("--kv_heads ", config.kv_heads, " do not divide --heads ", config.heads));
  for (const auto& [flag, value] :
       {std::pair("layers", config.layers), {"hidden", config.hidden}, {"vocab", config.vocab}}) {
    if (value < 1) throw UsageError(absl::StrCat("--", flag, " ", value, ": give a number of at least 1"));
  }
  return config;
}

Cluster cluster_of_flags() {
  const std::string name = absl::GetFlag(FLAGS_cluster);
  if (absl::EndsWith(name, ".json")) return load_cluster(tools::user_path(name));
  if (!absl::c_linear_search(cluster_names(), name)) {
    std::string known;
    for (const std::string& other : cluster_names()) absl::StrAppend(&known, other, ", ");
    throw UsageError(absl::StrCat("--cluster ", name, ": known are ", known, "or give a file ending in .json"));
  }
  return cluster(name);
}

SearchModuleLayoutsOptions options_of_flags(const examples::LlamaConfig& model, const Cluster& on) {
  SearchModuleLayoutsOptions options;
  options.ranks = absl::GetFlag(FLAGS_ranks), options.layers = model.layers;
  options.micro_batches = numbers("micro_batches", absl::GetFlag(FLAGS_micro_batches));
  options.stages = numbers("stages", absl::GetFlag(FLAGS_stages));
  options.schedules = {"1F1B", "interleaved 1F1B"};
  options.shard_sizes = numbers("shard_sizes", absl::GetFlag(FLAGS_shard_sizes));
  options.context_sizes = numbers("context_sizes", absl::GetFlag(FLAGS_context_sizes));
  options.expert_sizes = numbers("expert_sizes", absl::GetFlag(FLAGS_expert_sizes));
  if (!options.expert_sizes.empty() && model.experts > 0) options.experts = {"blocks.*.experts"};
  options.settings = {{"checkpoint", {1, 0}}};
  options.overlap = absl::GetFlag(FLAGS_overlap);
  options.between_layers = examples::between_layers(model, absl::GetFlag(FLAGS_batch), absl::GetFlag(FLAGS_length));
  options.optimizer = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-4);
  };
  options.cost_model = on.cost_model();
  const std::string memory = absl::GetFlag(FLAGS_memory);
  options.max_bytes = memory.empty() ? on.memory_bytes : tools::parse_bytes("memory", memory);
  options.max_steps = absl::GetFlag(FLAGS_max_steps);
  // Tensor parallelism and experts beyond a node are slow, and would be many choices.
  options.allows = [per_node = on.ranks_per_node](const DeviceMesh& mesh) {
    const int64_t experts = absl::c_linear_search(mesh.names(), "ep") ? mesh.size("ep") : 1;
    return mesh.size("tp") * experts <= per_node;
  };
  options.progress = [](int64_t steps, double seconds) {
    const std::string best = std::isinf(seconds) ? "none fits yet" : absl::StrFormat("best %.3g s a step", seconds);
    std::fprintf(stderr, "\r%lld choices, %-24s", static_cast<long long>(steps), best.c_str());
  };
  return options;
}

int run() {
  const examples::LlamaConfig model = model_of_flags();
  const int64_t batch = absl::GetFlag(FLAGS_batch), length = absl::GetFlag(FLAGS_length);
  if (batch < 1 || length < 1) throw UsageError("--batch and --length must be at least 1");
  const MakeModel make = examples::searched_llama(model);
  const std::vector<torch::Tensor> inputs = examples::token_ids(batch, length);
  const SearchModuleLayoutsOptions options = options_of_flags(model, cluster_of_flags());
  const std::string given = absl::GetFlag(FLAGS_predict);
  ModuleLayouts layouts;
  if (given.empty()) {
    const auto search = [&] {
      const absl::Cleanup end_line = [] { std::fputc('\n', stderr); };  // of progress, also before an error
      return search_module_layouts(make, inputs, options);
    };
    const ModuleLayoutSearch found = search();
    if (absl::GetFlag(FLAGS_explain)) std::printf("%s", found.explain().c_str());
    layouts = found.best;
  } else {
    layouts = predict_module_layouts(make, inputs, ModuleLayouts::load(tools::user_path(given)), options);
  }
  std::printf("%s\n%s  of it           %s\n", layouts.name().c_str(), layouts.step.to_string().c_str(),
              layouts.memory.to_string().c_str());
  if (layouts.step.peak_bytes > options.max_bytes)
    std::printf("that is more than the %s of a rank\n", tools::human_bytes(options.max_bytes).c_str());
  if (const std::string path = absl::GetFlag(FLAGS_save); !path.empty()) layouts.save(tools::user_path(path));
  const std::string svg = absl::GetFlag(FLAGS_svg), pipeline_svg = absl::GetFlag(FLAGS_pipeline_svg);
  if (svg.empty() && pipeline_svg.empty()) return 0;
  const ModuleTimelines timelines = predict_module_timelines(make, inputs, layouts, options);
  if (!svg.empty()) tools::write_file("svg", svg, timelines.micro_batch.to_svg());
  if (pipeline_svg.empty()) return 0;
  if (!timelines.pipeline)
    throw UsageError(absl::StrCat("--pipeline_svg ", pipeline_svg, ": the layouts have no pipeline; see --stages"));
  tools::write_file("pipeline_svg", pipeline_svg, timelines.pipeline->to_svg());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("choose_layouts", "Chooses the layouts of a Llama on a cluster.", argc, argv, run);
}
