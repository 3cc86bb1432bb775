// Measures the time cost of the engine's own choices: a step of a model without code for meshes, compared with one of
// the same model with communication written by an expert.
//
//   ./bazelw run //benchmarks:step_time
//   ./bazelw run //benchmarks:step_time -- --width 1024 --steps 20
//
// Both run in turn, in one process, on all ranks of a mesh; the first steps, which decide and fill caches, do not
// count. A figure is the median over the steps of the ratio of two that ran one after the other.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "dtensor/dtensor.h"
#include "examples/models/llama.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, width, 512, "hidden size of the model");
ABSL_FLAG(int64_t, layers, 2, "blocks of the model");
ABSL_FLAG(int64_t, length, 64, "tokens of a sequence");
ABSL_FLAG(int64_t, ranks, 4, "ranks of tensor parallelism");
ABSL_FLAG(int64_t, steps, 15, "that are timed");

namespace {

using namespace dtensor;

constexpr double kMost = 1.05;
constexpr int64_t kBatch = 4;

examples::LlamaConfig config() {
  examples::LlamaConfig c;
  c.width = absl::GetFlag(FLAGS_width);
  c.hidden = c.width * 5 / 2;
  c.vocab = 8 * c.width;
  c.layers = absl::GetFlag(FLAGS_layers);
  return c;
}

// A model with its optimizer and a batch.
class Training {
 public:
  Training(const examples::LlamaConfig& c, const DeviceMesh& mesh) : mesh_(mesh), model_(with_seed(c)) {
    distribute_module(*model_, mesh, examples::shard_llama);
    optimizer_ = std::make_unique<torch::optim::SGD>(model_->parameters(), 0.1);
    const auto batch = [&] {
      return distribute_tensor(torch::randint(c.vocab, {kBatch, absl::GetFlag(FLAGS_length)}), mesh, {Replicate()});
    };
    ids_ = batch();
    targets_ = batch();
  }

  // Seconds.
  double step() {
    const auto begin = std::chrono::steady_clock::now();
    const MeshScope scope(mesh_);
    optimizer_->zero_grad();
    const auto scores = model_->forward(ids_);
    const auto loss = torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets_.view({-1}));
    loss.backward();
    optimizer_->step();
    loss_ = loss.detach();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double loss() const { return full_tensor(loss_).item<double>(); }

 private:
  static examples::Llama with_seed(const examples::LlamaConfig& c) {
    torch::manual_seed(1);
    return examples::Llama(c);
  }

  DeviceMesh mesh_;
  examples::Llama model_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  torch::Tensor ids_, targets_, loss_;
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

int run() {
  const int64_t ranks = absl::GetFlag(FLAGS_ranks);
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"tp"});
  examples::LlamaConfig by_hand = config();
  by_hand.settle = [](const torch::Tensor& x) { return redistribute(x, {Replicate()}); };
  Training ours(config(), mesh), theirs(by_hand, mesh);
  for (int i = 0; i < 3; ++i) ours.step(), theirs.step();
  std::vector<double> our_times, their_times, ratios;
  for (int64_t i = 0; i < absl::GetFlag(FLAGS_steps); ++i) {
    // Which goes first changes, as the second may find memory as the first left it.
    if (i % 2 == 0) our_times.push_back(ours.step()), their_times.push_back(theirs.step());
    if (i % 2 == 1) their_times.push_back(theirs.step()), our_times.push_back(ours.step());
    ratios.push_back(our_times.back() / their_times.back());
  }
  std::printf("| model | mesh | ours, ms | by hand, ms | ratio |\n| --- | --- | ---: | ---: | ---: |\n");
  std::printf("| Llama, width %lld, %lld layers | %s | %.1f | %.1f | %.3f |\n",
              static_cast<long long>(absl::GetFlag(FLAGS_width)), static_cast<long long>(absl::GetFlag(FLAGS_layers)),
              mesh.to_string().c_str(), median(our_times) * 1e3, median(their_times) * 1e3, median(ratios));
  benchmarks::Gates gates;
  gates.at_most("time of a step / by hand", median(ratios), kMost);
  gates.at_most("difference of the losses", std::abs(ours.loss() - theirs.loss()), 1e-4);
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("step_time", "Times a step of a model beside one laid out by hand.", argc, argv,
                                     run);
}
