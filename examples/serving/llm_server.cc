// Serves a Llama of Hugging Face that is sharded over ranks: every rank reads its parts of the weights from the files,
// and requests that arrive at different times share the steps of one batch. Greedy tokens are compared with one
// device's. The ranks are in this process, or in one each if a launcher started several:
//
//   ./bazelw run //examples/serving:llm_server -- --checkpoint /tmp/llama --write
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/serving/llm_server --checkpoint /tmp/llama --requests FILE

#include <torch/nn.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/dtensor.h"
#include "examples/serving/batch_server.h"
#include "examples/serving/hugging_face_llama.h"
#include "mesh/memory_meter.h"
#include "processes/launch/launch_env.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, checkpoint, "",
          "folder with config.json and safetensors, as Hugging Face's transformers write them");
ABSL_FLAG(bool, write, false, "first write a small Llama with random weights to --checkpoint");
ABSL_FLAG(
    std::string, requests, "",
    "file with a line 'STEP NEW_TOKENS ID ID ...' per request; '-': standard input of rank 0; by default random ones");
ABSL_FLAG(int64_t, ranks, 4, "ranks in this process; where a launcher started several processes, as many as those");
ABSL_FLAG(int64_t, slots, 3, "sequences in a batch");
ABSL_FLAG(int64_t, capacity, 48, "tokens of a sequence, its prompt among them");
ABSL_FLAG(int64_t, chunk, 8, "tokens of a prompt that are read in one step");
ABSL_FLAG(bool, double, false, "compute in float64");
ABSL_FLAG(uint64_t, seed, 1, "of random weights and requests");

namespace {

using namespace dtensor;
using examples::Answer;
using examples::BatchServer;
using examples::Llama;
using examples::LlamaConfig;
using examples::Request;
using tools::UsageError;

int64_t positive(const char* name, int64_t value) {
  if (value < 1) throw UsageError(absl::StrCat("--", name, " ", value, ": must be at least 1"));
  return value;
}

ParallelPlan plan_of_llama() {
  return {{"tokens", RowwiseParallel()},      {"blocks.*.w[qkv]", ColwiseParallel()},
          {"blocks.*.wo", RowwiseParallel()}, {"blocks.*.gate", ColwiseParallel()},
          {"blocks.*.up", ColwiseParallel()}, {"blocks.*.down", RowwiseParallel()},
          {"head", ColwiseParallel()}};
}

// Sharded, with room for its parts alone; the values are arbitrary.
Llama make_sharded(const LlamaConfig& config, const DeviceMesh& mesh) {
  Llama model(nullptr);
  {
    const MeshScope shapes(mesh.meta());
    model = Llama(config);
  }
  parallelize_module(*model, mesh, plan_of_llama(), {.mesh_dim = "tp"});
  to_empty(*model);
  return model;
}

// Random weights: all of a size that leaves one token the most likely.
void write_checkpoint(const std::string& folder, const DeviceMesh& mesh, bool reports) {
  LlamaConfig config;
  config.vocab = 259;  // not a multiple of the ranks
  Llama model = make_sharded(config, mesh);
  const torch::NoGradGuard no_grad;
  for (const auto& p : model->named_parameters()) {
    if (p.key().find("norm") != std::string::npos) {
      p.value().fill_(1);
    } else {
      torch::nn::init::normal_(p.value(), 0, p.key() == "tokens.weight" ? 1 : 0.2);
    }
  }
  examples::save_weights(model, folder, reports);
}

// The text that rank 0 has, on all ranks: they must decide alike.
std::string shared(const std::string& text, const DeviceMesh& mesh) {
  const auto of_first = [&](const torch::Tensor& t) { return full_tensor(distribute_tensor(t, mesh)).cpu(); };
  const auto size = of_first(torch::full({1}, static_cast<int64_t>(text.size()), torch::kLong)).item<int64_t>();
  torch::Tensor bytes = torch::zeros({size}, torch::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), std::min<size_t>(text.size(), static_cast<size_t>(size)));
  bytes = of_first(bytes);
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<size_t>(size)};
}

std::string request_text(const LlamaConfig& config) {
  const std::string file = absl::GetFlag(FLAGS_requests);
  if (file.empty())
    return examples::random_requests(8, config.vocab, absl::GetFlag(FLAGS_capacity), absl::GetFlag(FLAGS_seed));
  if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(tools::user_path(file));
  if (!in) throw UsageError(absl::StrCat("--requests ", file, ": it cannot be read"));
  return {std::istreambuf_iterator<char>(in), {}};
}

World make_world() {
  if (find_launcher() == Launcher::kNone) return World::local(positive("ranks", absl::GetFlag(FLAGS_ranks)));
  return World::from_env();
}

void print_answers(std::ostream& out, const std::vector<Request>& requests, const std::vector<Answer>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    out << absl::StrFormat("request %d: %d tokens, arrived at %d, steps %d to %d: %s\n", i, requests[i].prompt.size(),
                           requests[i].arrival, answers[i].started, answers[i].ended,
                           absl::StrJoin(answers[i].ids, " "));
  }
}

// What one device does with the same requests: the same server, and each request by itself.
struct OneDevice {
  double seconds_per_token = 0;
  int64_t different = 0;  // requests with other tokens
};

OneDevice run_plain(const LlamaConfig& config, const std::string& folder, const examples::ServerOptions& options,
                    const std::vector<Request>& requests, const std::vector<Answer>& answers) {
  Llama model(config);
  examples::load_weights(model, folder);
  BatchServer server(model, DeviceMesh(), options);
  const auto batched = server.serve(requests);
  OneDevice result;
  result.seconds_per_token = server.steps().seconds / static_cast<double>(server.steps().tokens);
  for (size_t i = 0; i < requests.size(); ++i) {
    const bool same =
        answers[i].ids == batched[i].ids && answers[i].ids == examples::generate_alone(model, requests[i]);
    result.different += !same;
  }
  return result;
}

int serve() {
  const std::string folder =
      absl::GetFlag(FLAGS_checkpoint).empty() ? "" : tools::user_path(absl::GetFlag(FLAGS_checkpoint));
  if (folder.empty())
    throw UsageError("--checkpoint is missing: a folder; with --write a small model is written there");
  const examples::ServerOptions options{.slots = positive("slots", absl::GetFlag(FLAGS_slots)),
                                        .capacity = positive("capacity", absl::GetFlag(FLAGS_capacity)),
                                        .chunk = positive("chunk", absl::GetFlag(FLAGS_chunk))};
  if (absl::GetFlag(FLAGS_double)) torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const World world = make_world();
  const DeviceMesh mesh(world, {world.size()}, {"tp"});
  const bool reports = world.owned_ranks()[0] == 0;  // one of several processes
  std::ostream nowhere(nullptr);
  std::ostream& out = reports ? std::cout : nowhere;
  torch::manual_seed(absl::GetFlag(FLAGS_seed));
  if (absl::GetFlag(FLAGS_write)) {
    write_checkpoint(folder, mesh, reports);
    shared("", mesh);  // waits until rank 0 has written config.json
  }

  const LlamaConfig config = examples::read_config(folder);
  const auto requests =
      examples::parse_requests(shared(reports ? request_text(config) : "", mesh), config.vocab, options.capacity);
  if (requests.empty())
    throw UsageError(absl::StrCat("--requests ", absl::GetFlag(FLAGS_requests), ": there are none"));
  world.memory().reset_peak();
  Llama model = make_sharded(config, mesh);
  examples::load_weights(model, folder);
  const int64_t loading_peak = world.memory().peak_bytes();
  int64_t whole = 0;
  for (const auto& p : model->parameters()) whole += DTensor(p).spec().meta().bytes();
  out << absl::StrFormat("%d layers on %s of %s; weights: %d bytes, at most %d on a rank while they are loaded\n",
                         config.layers, mesh.to_string(), world.name(), whole, loading_peak);

  BatchServer server(model, mesh, options);
  const auto answers = server.serve(requests);
  check_styles_ran(*model);
  print_answers(out, requests, answers);
  const auto& steps = server.steps();
  out << absl::StrFormat("%d tokens in %d steps of at most %d sequences, %d of them with prompts\n", steps.tokens,
                         steps.count, options.slots, steps.of_chunks);
  out << absl::StrFormat("strategy cache: %d misses after two steps of each kind\n", steps.late_misses);
  if (!reports) return 0;
  const OneDevice one = run_plain(config, folder, options, requests, answers);
  out << absl::StrFormat("time per token: %.3f ms, on one device %.3f ms\n",
                         1e3 * steps.seconds / static_cast<double>(steps.tokens), 1e3 * one.seconds_per_token);
  out << absl::StrFormat("greedy tokens of %d of %d requests are those of one device\n",
                         static_cast<int64_t>(requests.size()) - one.different, requests.size());
  return one.different == 0 ? 0 : 1;
}

int run() {
  try {
    return serve();
  } catch (const c10::ValueError& e) {
    throw UsageError(tools::first_line(e.what_without_backtrace()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("llm_server", "Serves requests to a sharded Llama, and compares with one device.", argc,
                            argv, run);
}
