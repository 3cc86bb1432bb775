// Predicts layouts of large models that others measured, and compares the order: which layout is faster than which.
//
//   ./bazelw run //benchmarks:published_layouts
//   ./bazelw run //benchmarks:published_layouts -- --only "Table 2"
//
// Each table has one model on one cluster. Pairs whose measured speeds differ by less than 5 % are ties, which have no
// order. The search may not find worse than any published layout that fits by the same prediction. Models with other
// feed-forward layers than Llama's stand in by a Llama of as many parameters and products; parameters, gradients and
// AdamW's states are in bfloat16, so that less memory is predicted than they took.
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "dtensor/predict_module_layouts.h"
#include "dtensor/search_module_layouts.h"
#include "examples/models/searched_llama.h"
#include "mesh/device_mesh.h"
#include "plan/known_clusters.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the tables whose names contain this");
ABSL_FLAG(bool, search, true, "search layouts for the tables that have one batch and number of ranks");
ABSL_FLAG(bool, explain, false, "print the terms of each prediction");
ABSL_FLAG(int64_t, max_steps, 5000, "that a search may run");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;
using examples::LlamaConfig;

constexpr double kTie = 0.05;

struct PublishedLayout {
  ModuleLayouts layouts;
  int64_t ranks;
  int64_t batch, length;  // of a step
  double speed;           // as measured, in the unit of the table; larger is faster
  bool one_link = false;  // between nodes each rank gathers over its own link, as if each were a node of its own
};

struct PublishedTable {
  std::string name, source;
  LlamaConfig model;
  Cluster on;
  std::vector<PublishedLayout> layouts;
  bool by_flops = false;  // the unit is FLOP/s of a rank, not steps per second
  bool searched = true;
  std::string why_not = {};  // the order is no gate
};

// A GPT of 4 x width hidden features: two products of feed-forward layers become three of 8 / 3 x width.
LlamaConfig gpt(int64_t layers, int64_t width, int64_t heads, int64_t hidden) {
  LlamaConfig config;
  config.vocab = 51200, config.layers = layers, config.width = width;
  config.heads = config.kv_heads = heads, config.hidden = hidden;
  return config;
}

LlamaConfig llama(int64_t layers, int64_t width, int64_t heads, int64_t kv_heads, int64_t hidden, int64_t vocab) {
  LlamaConfig config = gpt(layers, width, heads, hidden);
  config.kv_heads = kv_heads, config.vocab = vocab;
  return config;
}

// Tensor parallelism of llama_styles(), in a pipeline if `pipeline` > 1.
ModuleLayouts megatron(int64_t data, int64_t tensor, int64_t pipeline, int64_t micro_batches, int64_t again,
                       bool sequence = false) {
  ModuleLayouts layouts{{{"dp", data}, {"tp", tensor}}, examples::llama_styles(sequence), {}, {}};
  layouts.micro_batches = micro_batches, layouts.settings = {{"checkpoint", again}};
  layouts.stages = pipeline;
  if (pipeline > 1) layouts.schedule = "1F1B";
  return layouts;
}

ModuleLayouts interleaved(ModuleLayouts layouts, int64_t stages_per_rank) {
  layouts.stages *= stages_per_rank, layouts.stages_per_rank = stages_per_rank;
  layouts.schedule = "interleaved 1F1B";
  return layouts;
}

ModuleLayouts in_groups(ModuleLayouts layouts, bool overlap) {
  layouts.groups = {"blocks.*", ""}, layouts.overlap = overlap;
  return layouts;
}

// Pipeline x tensor sizes on 64 GPUs, TFLOP/s of a GPU, as read from the plot.
PublishedTable megatron_figure_13(int64_t batch, const std::vector<double>& speeds) {
  PublishedTable table{absl::StrCat("Megatron-LM figure 13, batch ", batch),
                       "Narayanan et al., 2021, arXiv 2104.04473: 162.2B parameters, 64 A100",
                       gpt(32, 20480, 128, 54624),
                       cluster("a100x8"),
                       {}};
  for (size_t i = 0; i < speeds.size(); ++i) {
    const int64_t pipeline = int64_t{2} << i;
    table.layouts.push_back({megatron(1, 64 / pipeline, pipeline, batch, 1), 64, batch, 2048, speeds[i]});
  }
  return table;
}

// Tensor and pipeline parallelism beside ZeRO-3; seconds of an iteration follow from the days of the table. `one_link`:
// of ZeRO-3, whose steps took as long on 768 GPUs as on 1,536, about what gathers over one link of each rank take.
// NCCL's rings over several nodes use the links of all ranks on a node.
PublishedTable megatron_table_2(int64_t ranks, int64_t micro_batch, double zero_seconds, double seconds,
                                bool one_link) {
  constexpr int64_t kBatch = 1536, kLength = 2048;
  PublishedTable table{absl::StrCat("Megatron-LM Table 2, ", ranks, " GPUs, ZeRO-3 over ",
                                    one_link ? "one link of a rank" : "all links"),
                       "Narayanan et al., 2021, arXiv 2104.04473: 174.6B parameters, A100",
                       gpt(96, 12288, 96, 32768),
                       cluster("a100x8"),
                       {}};
  const ModuleLayouts zero = in_groups(megatron(ranks, 1, 1, kBatch / ranks / micro_batch, 1), /*overlap=*/true);
  table.layouts = {{zero, ranks, kBatch, kLength, 1 / zero_seconds, one_link},
                   {megatron(ranks / 96, 8, 12, kBatch / (ranks / 96), 1), ranks, kBatch, kLength, 1 / seconds}};
  table.searched = false;
  table.why_not = one_link ? "ZeRO-3 is predicted 1.3 to 1.4 times as fast as measured"
                           : "ZeRO-3 took as long as gathers over one link of each rank, and longer";
  return table;
}

PublishedTable hagemann() {
  constexpr int64_t kRanks = 128, kBatch = 2048;
  PublishedTable table{"Hagemann et al., 65B",
                       "arXiv 2311.05610, data of the authors: Llama 65B, 128 A100",
                       llama(80, 8192, 64, 64, 22016, 128000),
                       cluster("a100x8"),
                       {}};
  struct Row {
    int64_t tensor, pipeline, micro_batch;
    double seconds;
  };
  for (const Row& r : {Row{2, 4, 1, 79.31},
                       {2, 8, 1, 79.54},
                       {4, 4, 2, 82.88},
                       {4, 8, 2, 86.55},
                       {4, 4, 1, 86.61},
                       {4, 2, 1, 87.14},
                       {4, 8, 1, 92.61},
                       {8, 2, 2, 101.28},
                       {8, 4, 2, 103.17},
                       {8, 2, 1, 107.85},
                       {8, 4, 1, 111.83},
                       {8, 8, 2, 115.58},
                       {8, 8, 1, 121.93}}) {
    const int64_t data = kRanks / r.tensor / r.pipeline;
    table.layouts.push_back(
        {megatron(data, r.tensor, r.pipeline, kBatch / data / r.micro_batch, 0), kRanks, kBatch, 2048, 1 / r.seconds});
  }
  return table;
}

// Tokens a second and GPU. Eight micro-batches are the default of the program that was measured.
PublishedTable torchtitan() {
  PublishedTable table{"torchtitan, 405B",
                       "Llama 3.1 405B, 512 H100, benchmarks of December 2024",
                       llama(126, 16384, 128, 8, 53248, 128256),
                       cluster("h100x8"),
                       {}};
  const ModuleLayouts one = in_groups(megatron(8, 8, 8, 8, 1, /*sequence=*/true), /*overlap=*/true);
  table.layouts = {{one, 512, 256, 8192, 100}, {interleaved(one, 2), 512, 256, 8192, 128}};
  return table;
}

// TFLOP/s of a GPU. The number of stages on each pipeline rank was not published.
PublishedTable llama3() {
  PublishedTable table{"Llama 3 Table 4",
                       "arXiv 2407.21783: 405B, H100",
                       llama(126, 16384, 128, 8, 53248, 128256),
                       cluster("h100x8"),
                       {}};
  const auto row = [](int64_t data, int64_t per_data) {
    return interleaved(megatron(data, 8, 16, per_data, 0, /*sequence=*/true), 4);
  };
  ModuleLayouts sequences = row(8, 16);
  sequences.mesh = {{"dp", 8}, {"cp", 16}, {"tp", 8}}, sequences.context_dim = "cp";
  table.layouts = {{row(64, 32), 8192, 2048, 8192, 430},
                   {row(128, 16), 16384, 2048, 8192, 400},
                   {sequences, 16384, 128, 131072, 380}};
  table.by_flops = true, table.searched = false;
  return table;
}

std::vector<PublishedTable> tables() {
  return {megatron_figure_13(32, {102, 132, 140, 111, 91}),
          megatron_figure_13(128, {107, 146, 165, 162, 148}),
          megatron_table_2(384, 4, 81.6, 76.8, /*one_link=*/true),
          megatron_table_2(768, 2, 66.8, 39.4, /*one_link=*/true),
          megatron_table_2(1536, 1, 66.8, 20.8, /*one_link=*/true),
          megatron_table_2(384, 4, 81.6, 76.8, /*one_link=*/false),
          megatron_table_2(768, 2, 66.8, 39.4, /*one_link=*/false),
          megatron_table_2(1536, 1, 66.8, 20.8, /*one_link=*/false),
          hagemann(),
          torchtitan(),
          llama3()};
}

SearchModuleLayoutsOptions options_of(const PublishedTable& table, const PublishedLayout& p) {
  SearchModuleLayoutsOptions options;
  options.ranks = p.ranks;
  options.layers = table.model.layers;
  options.between_layers = examples::between_layers(table.model, p.batch, p.length);
  options.optimizer = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-4);
  };
  options.cost_model = table.on.cost_model();
  if (p.one_link) options.cost_model->ranks_per_node = 1;
  options.context_options.load_balance = true;
  return options;
}

struct Predicted {
  const PublishedLayout* published;
  ModuleLayouts layouts;
  double speed;
};

std::vector<Predicted> predict(const PublishedTable& table) {
  std::vector<Predicted> all;
  std::printf("%s (%s)\n  %-72s %10s %12s %9s\n", table.name.c_str(), table.source.c_str(), "layouts", "measured",
              "predicted", "memory");
  for (const PublishedLayout& p : table.layouts) {
    const auto make = examples::searched_llama(table.model);
    Predicted found{
        &p, predict_module_layouts(make, examples::token_ids(p.batch, p.length), p.layouts, options_of(table, p)), 0};
    const StepPrediction& step = found.layouts.step;
    found.speed = table.by_flops ? step.flops / step.seconds() / 1e12 : 1 / step.seconds();
    std::printf("  %-72s %10.4g %12.4g %6.1f GB\n", p.layouts.name().c_str(), p.speed, found.speed,
                static_cast<double>(step.peak_bytes) / 1e9);
    if (absl::GetFlag(FLAGS_explain)) std::printf("%s", step.to_string().c_str());
    std::fflush(stdout);
    all.push_back(std::move(found));
  }
  return all;
}

// How many pairs that are no ties are predicted in the measured order. FLOP of attention over other lengths are counted
// in different ways, so that these are no pairs.
void compare_order(const PublishedTable& table, const std::vector<Predicted>& all, Gates& gates) {
  int pairs = 0, agree = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = i + 1; k < all.size(); ++k) {
      const double measured = all[i].published->speed / all[k].published->speed;
      if (std::abs(std::log(measured)) < std::log(1 + kTie)) continue;
      if (all[i].published->length != all[k].published->length) continue;
      const bool same = (measured > 1) == (all[i].speed > all[k].speed);
      ++pairs, agree += same;
      if (!same)
        std::printf("  not as measured: %s and %s\n", all[i].layouts.name().c_str(), all[k].layouts.name().c_str());
    }
  }
  const std::string what = absl::StrCat(table.name, ": share of ", pairs, " pairs in the measured order");
  const double share = static_cast<double>(agree) / pairs;
  if (table.why_not.empty()) {
    gates.at_least(what, share, 0.9);
  } else {
    gates.note({absl::StrCat(what, " (", table.why_not, ")")}, share);
  }
}

// The search may choose from the mesh sizes, micro-batches, stages and schedules of all published layouts together.
void compare_search(const PublishedTable& table, const std::vector<Predicted>& all, Gates& gates) {
  const PublishedLayout& any = table.layouts.front();
  SearchModuleLayoutsOptions options = options_of(table, any);
  std::set<int64_t> stages = {1}, micro_batches, again;
  std::set<std::string> schedules;
  for (const PublishedLayout& p : table.layouts) {
    stages.insert(p.layouts.stages);
    micro_batches.insert(p.layouts.micro_batches);
    again.insert(p.layouts.settings.front().second);
    if (!p.layouts.schedule.empty()) schedules.insert(p.layouts.schedule);
    options.stages_per_rank = std::max(options.stages_per_rank, p.layouts.stages_per_rank);
    options.overlap = options.overlap || p.layouts.overlap;
  }
  options.stages.assign(stages.begin(), stages.end());
  options.micro_batches.assign(micro_batches.begin(), micro_batches.end());
  options.schedules.assign(schedules.begin(), schedules.end());
  options.settings = {{"checkpoint", {again.begin(), again.end()}}};
  options.max_bytes = table.on.memory_bytes, options.max_steps = absl::GetFlag(FLAGS_max_steps);
  const ModuleLayoutSearch found =
      search_module_layouts(examples::searched_llama(table.model), examples::token_ids(any.batch, any.length), options);
  std::printf("  found: %s, %.4g s a step, %.1f GB, after %lld steps\n", found.best.name().c_str(),
              found.best.step.seconds(), static_cast<double>(found.best.step.peak_bytes) / 1e9,
              static_cast<long long>(found.steps));
  double least = std::numeric_limits<double>::infinity();  // none fits
  for (const Predicted& p : all) {
    if (p.layouts.step.peak_bytes <= options.max_bytes) least = std::min(least, p.layouts.step.seconds());
  }
  const std::string what = absl::StrCat(table.name, ": seconds a step, best published that fits by found");
  if (std::isinf(least)) return gates.skip(what, "none is predicted to fit");
  gates.at_least(what, least / found.best.step.seconds(), 1);
}

int run() {
  Gates gates;
  for (const PublishedTable& table : tables()) {
    if (table.name.find(absl::GetFlag(FLAGS_only)) == std::string::npos) continue;
    const std::vector<Predicted> all = predict(table);
    compare_order(table, all, gates);
    if (table.searched && absl::GetFlag(FLAGS_search)) compare_search(table, all, gates);
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("published_layouts", "Predicts layouts that others measured.", argc, argv, run);
}
