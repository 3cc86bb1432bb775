// Measures the time cost of the engine's own choices: a step of a model without code for meshes, compared with one of
// the same model with communication written by an expert.
//
//   ./bazelw run //benchmarks:step_time
//   ./bazelw run //benchmarks:step_time -- --width 1024 --steps 20
//
// Both run in turn, in one process, on all ranks of a mesh; the first steps, which decide and fill caches, do not
// count. The ratio is the median over pairs of steps that ran one after the other.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "examples/models/llama.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, width, 512, "hidden size of the model");
ABSL_FLAG(int64_t, layers, 2, "blocks of the model");
ABSL_FLAG(int64_t, length, 64, "tokens of a sequence");
ABSL_FLAG(int64_t, ranks, 4, "ranks of tensor parallelism");
ABSL_FLAG(int, steps, 15, "that are timed");

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

  void step() {
    const MeshScope scope(mesh_);
    optimizer_->zero_grad();
    const auto scores = model_->forward(ids_);
    const auto loss = torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets_.view({-1}));
    loss.backward();
    optimizer_->step();
    loss_ = loss.detach();
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

int run() {
  const int64_t ranks = absl::GetFlag(FLAGS_ranks);
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"tp"});
  examples::LlamaConfig by_hand = config();
  by_hand.settle = [](const torch::Tensor& x) { return redistribute(x, {Replicate()}); };
  Training ours(config(), mesh), theirs(by_hand, mesh);
  const benchmarks::PairedTimes times =
      benchmarks::time_pairs([&] { ours.step(); }, [&] { theirs.step(); }, absl::GetFlag(FLAGS_steps));
  benchmarks::Gates gates;
  const std::string workload = absl::StrCat("step of a Llama of width ", absl::GetFlag(FLAGS_width), ", ",
                                            absl::GetFlag(FLAGS_layers), " layers, ", mesh.to_string());
  gates.at_most(benchmarks::compared(workload, "communication by hand", times), times.ratio, kMost);
  gates.at_most("difference of the losses", std::abs(ours.loss() - theirs.loss()), 1e-4);
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("step_time", "Times a step of a model beside one laid out by hand.", argc, argv,
                                     run);
}
