#include "examples/models/parallelism.h"

#include <torch/nn.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/llama.h"
#include "mesh/memory_meter.h"

namespace examples {
namespace {

using namespace dtensor;  // NOLINT: the names of an example

constexpr int64_t kBatch = 16, kLength = 32, kMicroBatches = 4, kTokens = kBatch * kLength;

LlamaConfig row_config() {
  LlamaConfig c;
  c.kv_heads = c.heads;
  c.hidden = 192;
  c.layers = 4;
  return c;
}

// ------------------------------------------------------------ formulas, of float32

const LlamaConfig kConfig = row_config();
const int64_t kLayers = kConfig.layers;
const int64_t kNormsOfLayer = 4 * 2 * kConfig.width;
const int64_t kWeightsOfLayer = 4 * (4 * kConfig.width * kConfig.width + 3 * kConfig.width * kConfig.hidden);
const int64_t kLastNorm = 4 * kConfig.width;
const int64_t kNorms = kLayers * kNormsOfLayer + kLastNorm;
const int64_t kVocabulary = 4 * 2 * kConfig.vocab * kConfig.width;  // the tokens' table, and the weight of the scores
const int64_t kAll = kLayers * kWeightsOfLayer + kVocabulary + kNorms;

// Received by one of n ranks, for a tensor of so many bytes.
int64_t gather(int64_t bytes, int64_t n) { return bytes * (n - 1) / n; }  // or reduce_scatter
int64_t all_reduce(int64_t bytes, int64_t n) { return 2 * gather(bytes, n); }

int64_t activation(int64_t tokens) { return 4 * tokens * kConfig.width; }
// Three numbers of each token, of each part of the vocabulary.
int64_t loss_over_vocabulary(int64_t tokens, int64_t n) { return 12 * tokens * (n - 1); }
int64_t mean_over_batch(int64_t m) { return all_reduce(8, m); }  // a sum and a count

StepNumbers data_parallel(int64_t m) { return {2, all_reduce(kAll, m) + mean_over_batch(m), 2 * kAll}; }

// Each group is gathered in forward and in backward, except for the last block and the rest: they are still there.
StepNumbers fully_sharded(int64_t m) {
  const int64_t layer = kWeightsOfLayer + kNormsOfLayer, rest = kVocabulary + kLastNorm;
  return {3 * kLayers + 2, gather((3 * kLayers - 1) * layer + 2 * rest, m) + mean_over_batch(m), 2 * kAll / m};
}

StepNumbers tensor_parallel(int64_t n) {
  return {4 * kLayers + 1, 4 * kLayers * all_reduce(activation(kTokens), n) + all_reduce(kNorms, n),
          2 * (kLayers * kWeightsOfLayer / n + kVocabulary + kNorms)};
}

int64_t sharded_state(int64_t n) { return 2 * ((kLayers * kWeightsOfLayer + kVocabulary) / n + kNorms); }

StepNumbers vocabulary_parallel(int64_t n) {
  return {4 * kLayers + 3, (4 * kLayers + 2) * all_reduce(activation(kTokens), n) + loss_over_vocabulary(kTokens, n),
          sharded_state(n)};
}

// A gather and a reduce-scatter in place of each all-reduce.
StepNumbers sequence_parallel(int64_t n) {
  return {8 * kLayers + 6, vocabulary_parallel(n).bytes + all_reduce(kNorms, n), sharded_state(n)};
}

// The norms' gradients are reduced over both dims, those of the other parameters over dp.
StepNumbers two_dims(int64_t m, int64_t n) {
  const int64_t layer = kWeightsOfLayer / n, rest = kVocabulary / n;
  const int64_t gathers = (2 * kLayers - 1) * (layer + kNormsOfLayer) + rest + kLastNorm,
                reductions = kLayers * layer + rest;
  return {(8 * kLayers + 4) + 2 + 2 * kLayers + 2 * (kLayers + 1),
          (4 * kLayers + 2) * all_reduce(activation(kTokens / m), n) + loss_over_vocabulary(kTokens / m, n) +
              mean_over_batch(m) + gather(gathers + reductions, m) + all_reduce(kNorms, m * n),
          sharded_state(n) / m};
}

// Two stages, with k micro-batches.
StepNumbers three_dims(int64_t m, int64_t n, int64_t k) {
  const int64_t tokens = kTokens / m / k, x = activation(tokens);
  const int64_t of_micro_batch =
      (4 * kLayers + 2) * all_reduce(x, n) + loss_over_vocabulary(tokens, n) + mean_over_batch(m);
  const int64_t gradients = all_reduce((kLayers * kWeightsOfLayer + kVocabulary) / n, m) + all_reduce(kNorms, m * n);
  return {k * (8 * kLayers + 4 + 2 + 2) + 2 * 2, k * (of_micro_batch + 2 * x / n) + gradients, sharded_state(n)};
}

// ------------------------------------------------------------ formulas of the most that a rank holds

int64_t scores(int64_t tokens, int64_t n) { return 4 * tokens * kConfig.vocab / n; }

// What autograd keeps of one layer: in parts over n ranks the rotated queries and keys, the values, the input of the
// last product of attention, its probabilities, and four tensors of the feed-forward layers; of both norms the input,
// it divided by its size, and the result. `n_norms`: over how many ranks inputs of norms are sharded.
int64_t saved_by_layer(int64_t tokens, int64_t n, int64_t n_norms) {
  const int64_t in_parts = 4 * kConfig.width + 4 * kConfig.hidden + kConfig.heads * kLength;
  return 4 * tokens * (in_parts / n + 4 * kConfig.width / n_norms + 2 * kConfig.width);
}
int64_t saved_by_last_norm(int64_t tokens, int64_t n_norms) {
  return 4 * tokens * (2 * kConfig.width / n_norms + kConfig.width);
}
int64_t saved_by_model(int64_t tokens, int64_t n, int64_t n_norms) {
  return kLayers * saved_by_layer(tokens, n, n_norms) + saved_by_last_norm(tokens, n_norms);
}

// A reduce-scatter holds its input twice more, and what it receives.
int64_t reduce_scatter_buffers(int64_t bytes, int64_t n) { return 2 * bytes + gather(bytes, n); }

// When the gradient of whole scores is there: the scores, their logarithms, and the gradients of both. Or, if that is
// more, when the gradients of all parameters are reduced, beside the scores.
int64_t peak_data_parallel(int64_t m) {
  const int64_t tokens = kTokens / m;
  return std::max(kAll + saved_by_model(tokens, 1, 1) + 4 * scores(tokens, 1), 3 * kAll + scores(tokens, 1));
}

// When the gradients of the last block are reduced: beside it and the rest the other blocks are in parts. The gradient
// of the scores' weight waits for that of the tokens' table.
int64_t peak_fully_sharded(int64_t m) {
  const int64_t tokens = kTokens / m, layer = kWeightsOfLayer + kNormsOfLayer, rest = kVocabulary + kLastNorm;
  return kAll / m + rest + layer + (kLayers - 1) * saved_by_layer(tokens, 1, 1) + scores(tokens, 1) +
         3 * activation(tokens) + kVocabulary / 2 + layer + reduce_scatter_buffers(layer, m);
}

int64_t peak_tensor_parallel(int64_t n) {
  return tensor_parallel(n).state_bytes / 2 + saved_by_model(kTokens, n, 1) + 4 * scores(kTokens, 1);
}

// When backward has left the scores' weight: beside its gradient and the scores, four tensors of the last norm.
int64_t peak_vocabulary_parallel(int64_t n) {
  return sharded_state(n) / 2 + saved_by_model(kTokens, n, 1) + scores(kTokens, n) + kVocabulary / 2 / n +
         3 * activation(kTokens);
}

// `parameters`: with those that are gathered. When the gradient of the last norm's result is there, beside those of the
// scores and their weight, or, if that is more, when it is reduced.
int64_t peak_of_sequences(int64_t parameters, int64_t tokens, int64_t n) {
  const int64_t x = activation(tokens);
  return parameters + saved_by_model(tokens, n, n) + scores(tokens, n) + kVocabulary / 2 / n +
         std::max(scores(tokens, n) + x, reduce_scatter_buffers(x, n));
}

int64_t peak_sequence_parallel(int64_t n) { return peak_of_sequences(sharded_state(n) / 2, kTokens, n); }

int64_t peak_two_dims(int64_t m, int64_t n) {
  const int64_t gathered = kWeightsOfLayer / n + kNormsOfLayer + kVocabulary / n + kLastNorm;
  return peak_of_sequences(sharded_state(n) / m / 2 + gathered, kTokens / m, n);
}

// In the last stage's backward all gradients are there, and each stage holds one micro-batch.
int64_t peak_three_dims(int64_t m, int64_t n, int64_t k) {
  const int64_t tokens = kTokens / m / k;
  return sharded_state(n) + saved_by_model(tokens, n, n) + 2 * scores(tokens, n) + activation(tokens);
}

// ------------------------------------------------------------ measurement

torch::Tensor mean_loss(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets.view({-1}));
}

torch::Tensor ids_on(const DeviceMesh& mesh, int64_t batch) {
  return zeros({batch, kLength}, mesh, over(mesh, "dp", Shard(0)), {.dtype = torch::kLong});
}

struct Formulas {
  StepNumbers numbers;
  int64_t peak;
};

ParallelismRow measured_step(std::string name, const DeviceMesh& mesh, const Formulas& formulas,
                             const std::function<void()>& step) {
  mesh.world().memory().reset_peak();
  const CommDebugMode comm;
  step();
  const MemoryMeter& memory = mesh.world().memory();
  std::string dims;
  for (const auto& dim : mesh.names()) {
    dims += (dims.empty() ? "" : ", ") + dim + "=" + std::to_string(mesh.size(dim));
  }
  return {std::move(name),     dims,         {comm.total(), comm.bytes(), memory.live_bytes()}, formulas.numbers,
          memory.peak_bytes(), formulas.peak};
}

// `lay_out`: distributes the model on the mesh.
ParallelismRow measured(std::string name, const DeviceMesh& mesh, const Formulas& formulas,
                        const std::function<void(Llama&)>& lay_out) {
  Llama model(kConfig);
  lay_out(model);
  return measured_step(std::move(name), mesh, formulas, [&] {
    const MeshScope scope(mesh);
    mean_loss(model(ids_on(mesh, kBatch)), ids_on(mesh, kBatch)).backward();
  });
}

void shard_groups(Llama& model, const DeviceMesh& mesh) {
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, {.mesh_dim = "dp"});
  fully_shard(*model, mesh, {.mesh_dim = "dp"});
}

ParallelPlan styles_of_blocks() {
  ParallelPlan plan;
  for (const auto& entry : llama_styles().entries) {
    if (entry.pattern.rfind("blocks", 0) == 0) plan.entries.push_back(entry);
  }
  return plan;
}

// Two stages of half a model each: the tokens are in the first, the scores in the second.
struct PipelineOfTwo {
  explicit PipelineOfTwo(const DeviceMesh& mesh) : meshes(pipeline_meshes(mesh, "pp")) {
    LlamaConfig half = kConfig;
    half.layers /= 2;
    for (size_t s = 0; s < 2; ++s) {
      models.emplace_back(half);
      ParallelPlan plan;
      for (const auto& entry : llama_styles(/*sequence=*/true).entries) {
        if (entry.pattern != (s == 0 ? "head" : "tokens")) plan.entries.push_back(entry);
      }
      if (s == 0) models[s]->unregister_module("norm"), models[s]->unregister_module("head");
      if (s == 1) models[s]->unregister_module("tokens");
      parallelize_module(*models[s], meshes[s], plan, {.mesh_dim = "tp"});
    }
  }

  void step() {
    const auto blocks = static_cast<size_t>(kLayers / 2);
    const auto first = [=, m = models[0]](const at::Tensor& ids) mutable {
      return m->run_blocks(m->tokens(ids), 0, blocks);
    };
    const auto second = [=, m = models[1]](const at::Tensor& x) mutable {
      return m->head(m->norm(m->run_blocks(x, 0, blocks)));
    };
    Pipeline pipeline(
        {{meshes[0], first, models[0]->parameters(), {}}, {meshes[1], second, models[1]->parameters(), {}}},
        one_f_one_b_schedule(2, kMicroBatches));
    const std::vector<torch::Tensor> inputs(kMicroBatches, ids_on(meshes[0], kBatch / kMicroBatches));
    const auto targets = ids_on(meshes[1], kBatch / kMicroBatches);
    pipeline.step(inputs, [&](const at::Tensor& scores, int64_t) { return mean_loss(scores, targets); });
  }

  std::vector<DeviceMesh> meshes;
  std::vector<Llama> models;
};

}  // namespace

std::vector<ParallelismRow> parallelism_rows() {
  const DeviceMesh dp(World::abstract(8), {8}, {"dp"}), tp(World::abstract(8), {8}, {"tp"});
  const DeviceMesh two(World::abstract(8), {2, 4}, {"dp", "tp"});
  const DeviceMesh three(World::abstract(8), {2, 2, 2}, {"pp", "dp", "tp"});
  const auto by_styles = [&tp](const ParallelPlan& plan) {
    return [&tp, plan](Llama& model) { parallelize_module(*model, tp, plan); };
  };
  std::vector<ParallelismRow> rows;
  rows.push_back(measured("data parallel", dp, {data_parallel(8), peak_data_parallel(8)},
                          [&](Llama& m) { distribute_module(*m, dp); }));
  rows.push_back(
      measured("fully sharded", dp, {fully_sharded(8), peak_fully_sharded(8)}, [&](Llama& m) { shard_groups(m, dp); }));
  rows.push_back(
      measured("tensor parallel", tp, {tensor_parallel(8), peak_tensor_parallel(8)}, by_styles(styles_of_blocks())));
  rows.push_back(measured("vocabulary parallel", tp, {vocabulary_parallel(8), peak_vocabulary_parallel(8)},
                          by_styles(llama_styles())));
  rows.push_back(measured("sequence parallel", tp, {sequence_parallel(8), peak_sequence_parallel(8)},
                          by_styles(llama_styles(/*sequence=*/true))));
  rows.push_back(measured("2-D", two, {two_dims(2, 4), peak_two_dims(2, 4)}, [&](Llama& m) {
    parallelize_module(*m, two, llama_styles(/*sequence=*/true), {.mesh_dim = "tp"});
    shard_groups(m, two);
  }));
  PipelineOfTwo pipeline(three);
  rows.push_back(measured_step("3-D", three, {three_dims(2, 2, kMicroBatches), peak_three_dims(2, 2, kMicroBatches)},
                               [&] { pipeline.step(); }));
  return rows;
}

std::string to_string(const std::vector<ParallelismRow>& rows) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-20s %-17s %11s %9s %9s %9s\n", "", "mesh", "collectives", "bytes", "state",
                "peak");
  std::string text = line;
  for (const ParallelismRow& row : rows) {
    const StepNumbers& n = row.measured;
    std::snprintf(line, sizeof(line), "%-20s %-17s %11lld %9lld %9lld %9lld\n", row.name.c_str(), row.mesh.c_str(),
                  static_cast<long long>(n.collectives), static_cast<long long>(n.bytes),
                  static_cast<long long>(n.state_bytes), static_cast<long long>(row.peak_bytes));
    text += line;
  }
  return text;
}

}  // namespace examples
