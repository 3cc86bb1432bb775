// Trains a small transformer language model twice from the same weights, on one plain device and sharded over a mesh,
// and shows that both learn the same, and the communication of the sharded one. The ranks of the mesh are in this
// process, or in one each if a launcher started several:
//
//   ./bazelw run //examples:train_lm -- --mesh dp=2,tp=2 --steps 60 --svg layout.svg
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/train_lm --mesh dp=2,tp=2

#include <torch/nn.h>
#include <torch/optim.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/dtensor.h"
#include "examples/lm_model.h"
#include "examples/lm_report.h"
#include "examples/lm_sharding.h"
#include "examples/text_data.h"
#include "mesh/memory_meter.h"
#include "observe/layout_picture.h"
#include "processes/launch/launch_env.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, mesh, "dp=2,tp=2",
          "mesh dims as NAME=SIZE,...: names that begin with 'd' split the batch, others the weights");
ABSL_FLAG(int64_t, steps, 60, "optimizer steps");
ABSL_FLAG(uint64_t, seed, 1, "of the weights, the batches and the sample");
ABSL_FLAG(std::string, vocab, "char", "tokens: 'char' or 'word'");
ABSL_FLAG(std::string, text, "", "file to learn from; by default this project's own documentation");
ABSL_FLAG(std::string, svg, "", "write a picture of every parameter's layout to this file");
ABSL_FLAG(bool, double, false, "compute in float64");
ABSL_FLAG(std::string, device, "cpu", "device of every rank: cpu, cuda:0, ...; cuda: of each process its own");
ABSL_FLAG(std::string, world, "auto",
          "ranks: 'local': all in this process; 'env': those that a launcher started; 'auto': env if one did");
ABSL_FLAG(std::string, losses, "", "write the mesh's losses to this file, all their bits");
ABSL_FLAG(int64_t, batch, 8, "sequences per step");
ABSL_FLAG(int64_t, context, 32, "tokens per sequence");
ABSL_FLAG(int64_t, width, 48, "hidden size");
ABSL_FLAG(int64_t, heads, 4, "attention heads; must divide the width");
ABSL_FLAG(int64_t, layers, 2, "transformer blocks");
ABSL_FLAG(double, lr, 3e-3, "learning rate of AdamW");
ABSL_FLAG(int64_t, sample, 160, "tokens of text to generate at the end");

namespace {

using namespace dtensor;
using examples::Batch;
using examples::LanguageModel;
using tools::UsageError;

std::string read_text() {
  const std::string file = absl::GetFlag(FLAGS_text);
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (!file.empty()) {
    files.push_back(tools::user_path(file));
  } else {
    if (fs::exists("README.md")) files.push_back("README.md");
    if (fs::is_directory("docs")) {
      for (const auto& entry : fs::directory_iterator("docs")) {
        if (entry.path().extension() == ".md") files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) throw UsageError("no README.md or docs/ beside this program: give --text FILE");
  }
  std::string text;
  for (const auto& path : files) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) throw UsageError(absl::StrCat("--text ", path.string(), ": no such file"));
    std::ifstream in(path, std::ios::binary);
    if (!in) throw UsageError(absl::StrCat("--text ", path.string(), ": cannot be read"));
    std::stringstream content;
    content << in.rdbuf();
    text += content.str();
  }
  if (text.empty()) throw UsageError(absl::StrCat("--text ", file, ": the file is empty"));
  return text;
}

void progress(const char* what, int64_t done, int64_t total, double loss) {
  if (done < total && ::isatty(STDERR_FILENO) == 0) return;
  const int width = 30, full = static_cast<int>(done * width / total);
  std::fprintf(stderr, "\r%-14s [%s%s] %3lld/%lld  loss %.4f%s", what, std::string(full, '#').c_str(),
               std::string(width - full, '.').c_str(), static_cast<long long>(done), static_cast<long long>(total),
               loss, done == total ? "\n" : "");
  std::fflush(stderr);
}

struct Run {
  std::vector<double> losses;
  // On the mesh alone:
  std::vector<uint64_t> misses;  // of the strategy cache, after each step
  std::vector<CommEvent> last_step;
};

// The training loop of both runs: `place` moves a batch to the model's layout, `after` is called after each step.
template <typename Place, typename After>
Run train(const char* what, bool reports, LanguageModel& model, const std::vector<Batch>& batches, const Place& place,
          const After& after) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(absl::GetFlag(FLAGS_lr)));
  Run run;
  const auto steps = static_cast<int64_t>(batches.size());
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = place(batches[step]);
    optimizer.zero_grad();
    const auto logits = model->forward(batch.inputs);
    const auto loss =
        torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), batch.targets.view({-1}));
    loss.backward();
    optimizer.step();
    run.losses.push_back(loss.item<double>());
    after(run);
    if (reports) progress(what, step + 1, steps, run.losses.back());
  }
  return run;
}

Run train_plain(LanguageModel& model, torch::Device device, const std::vector<Batch>& batches) {
  const auto place = [&](const Batch& b) { return Batch{b.inputs.to(device), b.targets.to(device)}; };
  return train("one device", true, model, batches, place, [](Run&) {});
}

Run train_sharded(LanguageModel& model, const DeviceMesh& mesh, const std::vector<Batch>& batches, bool reports) {
  MeshScope scope(mesh);
  CommDebugMode comm;
  const auto split = examples::layout(mesh, Replicate(), Shard(0));
  const auto place = [&](const Batch& b) {
    // Every process has the batch: take the parts without communication.
    return Batch{distribute_tensor(b.inputs, mesh, split, std::nullopt),
                 distribute_tensor(b.targets, mesh, split, std::nullopt)};
  };
  return train("mesh", reports, model, batches, place, [&](Run& run) {
    run.misses.push_back(strategy_cache(mesh.world()).stats().misses);
    run.last_step = comm.events();
    comm.reset();
  });
}

std::string generate(LanguageModel& model, const examples::Vocab& vocab, std::vector<int64_t> ids, int64_t count,
                     const DeviceMesh& mesh) {
  torch::NoGradGuard no_grad;
  model->eval();
  std::mt19937_64 random(absl::GetFlag(FLAGS_seed));
  for (int64_t n = 0; n < count; ++n) {
    const int64_t length = std::min<int64_t>(static_cast<int64_t>(ids.size()), model->config.context);
    const auto window = torch::tensor(std::vector<int64_t>(ids.end() - length, ids.end())).view({1, length});
    torch::Tensor logits;
    {
      MeshScope scope(mesh);
      logits = full_tensor(model->forward(distribute_tensor(window, mesh)));
    }
    const auto p = torch::softmax(logits[0][length - 1].to(torch::kCPU, torch::kDouble) / 0.8, -1).contiguous();
    std::discrete_distribution<int64_t> pick(p.data_ptr<double>(), p.data_ptr<double>() + p.numel());
    ids.push_back(pick(random));
  }
  return vocab.decode(ids);
}

// The run that the flags request.
struct Job {
  tools::MeshShape shape;
  std::string tokens;
  int64_t steps = 0, batch = 0;
  examples::LMConfig config;  // the vocabulary is known when the text has been read
  torch::Device device{torch::kCPU};
};

int64_t positive(const char* name, int64_t value) {
  if (value < 1) throw UsageError(absl::StrCat("--", name, " ", value, ": must be at least 1"));
  return value;
}

Job job_of_flags() {
  Job job;
  const std::string mesh = absl::GetFlag(FLAGS_mesh);
  job.shape = tools::parse_mesh("mesh", mesh);
  for (int64_t size : job.shape.sizes) {
    if (size > 1024) throw UsageError(absl::StrCat("--mesh ", mesh, ": a dim has at most 1024 ranks here"));
  }
  job.tokens = absl::GetFlag(FLAGS_vocab);
  if (job.tokens != "char" && job.tokens != "word") {
    throw UsageError(absl::StrCat("--vocab ", job.tokens, ": must be 'char' or 'word'"));
  }
  job.steps = positive("steps", absl::GetFlag(FLAGS_steps));
  job.batch = positive("batch", absl::GetFlag(FLAGS_batch));
  job.config.context = positive("context", absl::GetFlag(FLAGS_context));
  job.config.width = positive("width", absl::GetFlag(FLAGS_width));
  job.config.heads = positive("heads", absl::GetFlag(FLAGS_heads));
  job.config.layers = positive("layers", absl::GetFlag(FLAGS_layers));
  if (job.config.width % job.config.heads != 0) {
    throw UsageError(absl::StrCat("--heads ", job.config.heads, ": must divide --width ", job.config.width));
  }
  const std::string device = absl::GetFlag(FLAGS_device);
  try {
    job.device = torch::Device(device);
  } catch (const c10::Error&) {
    throw UsageError(absl::StrCat("--device ", device, ": not a device; say cpu or cuda:0"));
  }
  return job;
}

// The ranks of this process, or those of all processes that were started for this job.
World make_world(int64_t ranks, torch::Device device) {
  const std::string kind = absl::GetFlag(FLAGS_world);
  if (kind != "local" && kind != "env" && kind != "auto") {
    throw UsageError(absl::StrCat("--world ", kind, ": must be 'local', 'env' or 'auto'"));
  }
  if (kind == "local" || (kind == "auto" && find_launcher() == Launcher::kNone)) return World::local(ranks, device);
  LaunchOptions options;
  options.device = absl::GetFlag(FLAGS_device);
  const World world = World::from_env(options);
  if (world.size() != ranks) {
    const std::string mesh = absl::GetFlag(FLAGS_mesh);
    throw UsageError(absl::StrCat("--mesh ", mesh, " has ", ranks, " ranks, but ", world.size(), " were started"));
  }
  return world;
}

// The same weights every time.
LanguageModel make_model(const Job& job) {
  torch::manual_seed(absl::GetFlag(FLAGS_seed));
  LanguageModel model(job.config);
  model->to(job.device, absl::GetFlag(FLAGS_double) ? torch::kDouble : torch::kFloat);
  return model;
}

void print_losses(std::ostream& out, const Run& one, const Run& many) {
  double difference = 0;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    difference = std::max(difference, std::abs(one.losses[i] - many.losses[i]));
  }
  if (!one.losses.empty()) {
    out << "\nLoss: o one device, x mesh, * both\n" << examples::chart(one.losses, many.losses);
  }
  out << absl::StrFormat("first %.6f, last %.6f; largest difference %.3g (%s)\n", many.losses.front(),
                         many.losses.back(), difference, absl::GetFlag(FLAGS_double) ? "float64" : "float32");
}

void print_costs(std::ostream& out, const Run& run, const std::vector<NamedSpec>& layouts, const World& world) {
  int64_t calls = static_cast<int64_t>(run.last_step.size()), bytes = 0;
  for (const auto& e : run.last_step) bytes += e.bytes;
  out << absl::StrFormat("\nCommunication of one step: %d collectives, %d bytes received per rank\n", calls, bytes)
      << examples::communication_table(run.last_step);

  int64_t whole_bytes = 0, rank_bytes = 0;
  for (const auto& [name, spec] : layouts) {
    whole_bytes += spec->meta().bytes();
    rank_bytes += spec->max_local_bytes();
  }
  const auto stats = strategy_cache(world).stats();
  const uint64_t settled = run.misses.size() > 2 ? run.misses.back() - run.misses[1] : 0;
  out << absl::StrFormat("\nParameters: %d bytes per rank, %d bytes on one device (%.1f %%)\n", rank_bytes, whole_bytes,
                         100.0 * static_cast<double>(rank_bytes) / static_cast<double>(whole_bytes));
  out << absl::StrFormat("Peak memory of distributed tensors per rank: %d bytes\n", world.memory().peak_bytes());
  out << absl::StrFormat("Strategy cache: %d hits, %d misses, %d entries; %d misses after step 2\n", stats.hits,
                         stats.misses, stats.size, settled);
}

// The files of --svg and --losses.
void write_files(const std::vector<NamedSpec>& layouts, const std::vector<double>& losses) {
  if (const std::string file = absl::GetFlag(FLAGS_svg); !file.empty()) {
    tools::write_file("svg", file, layout_svg(layouts, "Parameters of the language model"));
    std::cout << "Layouts drawn in " << tools::user_path(file) << "\n";
  }
  if (const std::string file = absl::GetFlag(FLAGS_losses); !file.empty()) {
    std::string lines;
    for (double loss : losses) absl::StrAppendFormat(&lines, "%a\n", loss);
    tools::write_file("losses", file, lines);
  }
}

int compare() {
  Job job = job_of_flags();
  const World world = make_world(job.shape.size, job.device);
  job.device = world.device(world.owned_ranks()[0]);
  // Only one of several processes reports.
  const bool reports = world.owned_ranks()[0] == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = reports ? std::cout : nowhere;

  const std::string text = read_text();
  const examples::Vocab vocab(text, job.tokens == "char" ? examples::VocabKind::kChar : examples::VocabKind::kWord);
  const auto ids = vocab.encode(text);
  const int64_t context = job.config.context;
  if (static_cast<int64_t>(ids.size()) <= context + 1) {
    throw UsageError(absl::StrCat("--text: ", ids.size(), " tokens are too few for --context ", context));
  }
  job.config.vocab = vocab.size();
  const auto batches = examples::make_batches(ids, job.batch, context, job.steps, absl::GetFlag(FLAGS_seed));

  LanguageModel plain = make_model(job), sharded = make_model(job);
  const DeviceMesh mesh(world, job.shape.sizes, job.shape.names);
  distribute_module(*sharded, mesh, examples::shard_model);
  const auto layouts = parameter_layouts(*sharded);
  int64_t parameters = 0;
  for (const auto& [name, spec] : layouts) parameters += spec->meta().numel();
  out << absl::StrFormat("text: %d tokens, vocabulary of %d %ss; model: %d parameters; mesh: %s of %s\n", ids.size(),
                         vocab.size(), job.tokens, parameters, mesh.to_string(), world.name())
      << std::flush;

  const Run one = reports ? train_plain(plain, job.device, batches) : Run();
  const Run many = train_sharded(sharded, mesh, batches, reports);
  print_losses(out, one, many);
  print_costs(out, many, layouts, world);
  if (reports) write_files(layouts, many.losses);
  if (const int64_t count = absl::GetFlag(FLAGS_sample); count > 0) {
    const std::vector<int64_t> beginning(ids.begin(), ids.begin() + std::min<int64_t>(12, context));
    out << "\nSample:\n" << generate(sharded, vocab, beginning, count, mesh) << "\n";
  }
  return 0;
}

int run() {
  try {
    return compare();
  } catch (const c10::Error& e) {
    // The whole text: that of a job that failed has more than one line, and run_program() prints the first.
    std::cerr << "train_lm: " << e.what_without_backtrace() << "\n";
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("train_lm", "Trains a small language model on one device and on a mesh, and compares.",
                            argc, argv, run);
}
