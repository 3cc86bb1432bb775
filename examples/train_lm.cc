// Trains a small transformer language model twice from the same weights, on one plain device and sharded over a mesh,
// and shows that both learn the same and what the sharded one communicated. The ranks of the mesh live in this process,
// or in one each where a launcher started several:
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
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "dtensor/dtensor.h"
#include "examples/lm_model.h"
#include "examples/text_data.h"
#include "mesh/memory_meter.h"
#include "observe/layout_picture.h"
#include "processes/launch/launch_env.h"

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

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct MeshShape {
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  int64_t ranks = 1;
};

MeshShape parse_mesh(const std::string& text) {
  MeshShape shape;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> kv = absl::StrSplit(part, absl::MaxSplits('=', 1));
    int64_t size = 0;
    if (kv.first.empty() || !absl::SimpleAtoi(kv.second, &size) || size < 1 || size > 1024) {
      throw UsageError(absl::StrCat("--mesh ", text, ": '", part,
                                    "' is not NAME=SIZE with a size from 1 to 1024, such as dp=2,tp=2"));
    }
    if (std::count(shape.names.begin(), shape.names.end(), kv.first)) {
      throw UsageError(absl::StrCat("--mesh ", text, ": the name '", kv.first, "' occurs twice"));
    }
    shape.names.push_back(kv.first);
    shape.sizes.push_back(size);
    shape.ranks *= size;
  }
  return shape;
}

bool splits_batch(const std::string& dim_name) { return dim_name[0] == 'd'; }

// `weights` on the mesh dims that split weights, `batch` on those that split the batch.
Placements layout(const DeviceMesh& mesh, const Placement& weights, const Placement& batch) {
  Placements placements;
  for (const auto& name : mesh.names()) placements.push_back(splits_batch(name) ? batch : weights);
  return placements;
}

// The whole of the sharding: tables and column-parallel layers by rows of the weight, row-parallel layers by its
// columns; everything else stays replicated.
void shard_model(const std::string& path, torch::nn::Module& module, const DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto put = [&](const char* parameter, const Placement& placement) {
    shard_parameter(module, parameter, mesh, layout(mesh, placement, Replicate()));
  };
  if (name == "tokens" || name == "head") {
    put("weight", Shard(0));
  } else if (name == "wq" || name == "wk" || name == "wv" || name == "up") {
    put("weight", Shard(0));
    put("bias", Shard(0));
  } else if (name == "wo" || name == "down") {
    put("weight", Shard(1));
  }
}

std::filesystem::path users_path(const std::string& file) {
  const char* dir = std::getenv("BUILD_WORKING_DIRECTORY");  // where `bazel run` was called
  const std::filesystem::path path = file;
  return dir && path.is_relative() ? dir / path : path;
}

void write(const char* flag, const std::string& file, const std::string& text) {
  const auto path = users_path(file);
  std::ofstream out(path);
  if (!(out << text) || !out.flush()) throw UsageError(absl::StrCat(flag, " ", path.string(), ": cannot be written"));
}

std::string read_text() {
  const std::string file = absl::GetFlag(FLAGS_text);
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (!file.empty()) {
    files.push_back(users_path(file));
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
  std::vector<uint64_t> misses;  // strategy-cache misses after each step
};

// One training loop for both runs: `place` puts a batch where the model is, `after` looks at each step.
template <typename Place, typename After>
Run train(const char* what, bool reports, LanguageModel& model, const std::vector<Batch>& batches, Place place,
          After after) {
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
    after(run, step);
    if (reports) progress(what, step + 1, steps, run.losses.back());
  }
  return run;
}

// Two curves in one field of characters: 'o' plain, 'x' mesh, '*' where they meet.
std::string chart(const std::vector<double>& plain, const std::vector<double>& mesh) {
  const int width = 64, height = 12;
  double low = plain[0], high = plain[0];
  for (const auto* curve : {&plain, &mesh}) {
    for (double x : *curve) low = std::min(low, x), high = std::max(high, x);
  }
  std::vector<std::string> rows(height, std::string(width, ' '));
  const auto draw = [&](const std::vector<double>& curve, char mark) {
    for (int x = 0; x < width; ++x) {
      const double value = curve[static_cast<size_t>(x * (curve.size() - 1) / (width - 1))];
      const int y = high > low ? static_cast<int>((high - value) / (high - low) * (height - 1) + 0.5) : 0;
      char& cell = rows[y][x];
      cell = cell == ' ' ? mark : '*';
    }
  };
  draw(plain, 'o');
  draw(mesh, 'x');
  std::string text;
  for (int y = 0; y < height; ++y) {
    absl::StrAppendFormat(&text, "%8.4f |%s\n", high - (high - low) * y / (height - 1), rows[y]);
  }
  absl::StrAppend(&text, "         +", std::string(width, '-'), "\n          step 1");
  absl::StrAppendFormat(&text, "%*s\n", width - 6, absl::StrCat("step ", plain.size()));
  return text;
}

struct Kind {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// "kind  calls  bytes" and below each kind the operators that caused it.
std::string communication_table(const std::vector<CommEvent>& events) {
  std::map<std::string, Kind> kinds;
  std::map<std::string, std::map<std::string, Kind>> causes;
  for (const auto& e : events) {
    const std::string kind(dtensor::to_string(e.collective));
    // One line for all parameters' gradients, one per argument of everything else.
    const bool gradient = e.cause.op == "gradient";
    const std::string cause =
        absl::StrCat(gradient ? "gradients of parameters" : e.cause.op, gradient || e.cause.argument.empty() ? "" : " ",
                     gradient ? "" : e.cause.argument, e.backward ? " (backward)" : "");
    for (Kind* k : {&kinds[kind], &causes[kind][cause]}) {
      ++k->calls;
      k->bytes += e.bytes;
    }
  }
  std::string text;
  for (const auto& [kind, total] : kinds) {
    absl::StrAppendFormat(&text, "  %-58s %4d calls %10d B\n", kind, total.calls, total.bytes);
    for (const auto& [cause, k] : causes[kind]) {
      absl::StrAppendFormat(&text, "    %-56s %4d       %10d B\n", cause, k.calls, k.bytes);
    }
  }
  return text.empty() ? "  none\n" : text;
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

int run() {
  const MeshShape shape = parse_mesh(absl::GetFlag(FLAGS_mesh));
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw UsageError(absl::StrCat("--", name, " ", value, ": must be at least 1"));
    return value;
  };
  const std::string kind = absl::GetFlag(FLAGS_vocab);
  if (kind != "char" && kind != "word") throw UsageError(absl::StrCat("--vocab ", kind, ": must be 'char' or 'word'"));
  const int64_t steps = positive("steps", absl::GetFlag(FLAGS_steps));
  const int64_t batch = positive("batch", absl::GetFlag(FLAGS_batch));
  examples::LMConfig config;
  config.context = positive("context", absl::GetFlag(FLAGS_context));
  config.width = positive("width", absl::GetFlag(FLAGS_width));
  config.heads = positive("heads", absl::GetFlag(FLAGS_heads));
  config.layers = positive("layers", absl::GetFlag(FLAGS_layers));
  if (config.width % config.heads != 0) {
    throw UsageError(absl::StrCat("--heads ", config.heads, ": must divide --width ", config.width));
  }
  const std::string device_name = absl::GetFlag(FLAGS_device);
  std::optional<torch::Device> device;
  try {
    device.emplace(device_name);
  } catch (const c10::Error&) {
    throw UsageError(absl::StrCat("--device ", device_name, ": not a device; say cpu or cuda:0"));
  }

  const World world = make_world(shape.ranks, *device);
  device = world.device(world.owned_ranks()[0]);
  // Of several processes one reports.
  const bool reports = world.owned_ranks()[0] == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = reports ? std::cout : nowhere;

  const std::string text = read_text();
  const examples::Vocab vocab(text, kind == "char" ? examples::VocabKind::kChar : examples::VocabKind::kWord);
  const auto ids = vocab.encode(text);
  if (static_cast<int64_t>(ids.size()) <= config.context + 1) {
    throw UsageError(absl::StrCat("--text: ", ids.size(), " tokens are too few for --context ", config.context));
  }
  config.vocab = vocab.size();
  const auto batches = examples::make_batches(ids, batch, config.context, steps, absl::GetFlag(FLAGS_seed));

  const auto make_model = [&] {  // the same weights every time
    torch::manual_seed(absl::GetFlag(FLAGS_seed));
    LanguageModel model(config);
    model->to(*device, absl::GetFlag(FLAGS_double) ? torch::kDouble : torch::kFloat);
    return model;
  };
  LanguageModel plain = make_model(), sharded = make_model();

  const DeviceMesh mesh(world, shape.sizes, shape.names);
  distribute_module(*sharded, mesh, shard_model);

  int64_t parameters = 0, whole_bytes = 0, rank_bytes = 0;
  const auto layouts = parameter_layouts(*sharded);
  for (const auto& [name, spec] : layouts) {
    parameters += spec->meta().numel();
    whole_bytes += spec->meta().bytes();
    rank_bytes += spec->max_local_bytes();
  }
  out << absl::StrFormat("text: %d tokens, vocabulary of %d %ss; model: %d parameters; mesh: %s of %s\n", ids.size(),
                         vocab.size(), kind, parameters, mesh.to_string(), world.name())
      << std::flush;

  const auto to_device = [&](const Batch& b) { return Batch{b.inputs.to(*device), b.targets.to(*device)}; };
  const Run one = reports ? train("one device", reports, plain, batches, to_device, [](Run&, int64_t) {}) : Run();

  std::vector<CommEvent> last_step;
  Run many;
  {
    MeshScope scope(mesh);
    CommDebugMode comm;
    const auto split = layout(mesh, Replicate(), Shard(0));
    many = train(
        "mesh", reports, sharded, batches,
        [&](const Batch& b) {
          // Every process has the batch: take the parts without communication.
          return Batch{distribute_tensor(b.inputs, mesh, split, std::nullopt),
                       distribute_tensor(b.targets, mesh, split, std::nullopt)};
        },
        [&](Run& r, int64_t) {
          r.misses.push_back(strategy_cache(world).stats().misses);
          last_step = comm.events();
          comm.reset();
        });
  }

  double difference = 0;
  for (size_t i = 0; i < one.losses.size(); ++i)
    difference = std::max(difference, std::abs(one.losses[i] - many.losses[i]));
  if (reports) out << "\nLoss: o one device, x mesh, * both\n" << chart(one.losses, many.losses);
  out << absl::StrFormat("first %.6f, last %.6f; largest difference %.3g (%s)\n", many.losses.front(),
                         many.losses.back(), difference, absl::GetFlag(FLAGS_double) ? "float64" : "float32");

  int64_t calls = static_cast<int64_t>(last_step.size()), bytes = 0;
  for (const auto& e : last_step) bytes += e.bytes;
  out << absl::StrFormat("\nCommunication of one step: %d collectives, %d bytes received per rank\n", calls, bytes)
      << communication_table(last_step);

  const auto stats = strategy_cache(world).stats();
  const uint64_t settled = many.misses.size() > 2 ? many.misses.back() - many.misses[1] : 0;
  out << absl::StrFormat("\nParameters: %d bytes per rank, %d bytes on one device (%.1f %%)\n", rank_bytes, whole_bytes,
                         100.0 * static_cast<double>(rank_bytes) / static_cast<double>(whole_bytes));
  out << absl::StrFormat("Peak memory of distributed tensors per rank: %d bytes\n", world.memory().peak_bytes());
  out << absl::StrFormat("Strategy cache: %d hits, %d misses, %d entries; %d misses after step 2\n", stats.hits,
                         stats.misses, stats.size, settled);

  if (const std::string file = absl::GetFlag(FLAGS_svg); !file.empty() && reports) {
    write("--svg", file, layout_svg(layouts, "Parameters of the language model"));
    out << "Layouts drawn in " << users_path(file).string() << "\n";
  }
  if (const std::string file = absl::GetFlag(FLAGS_losses); !file.empty() && reports) {
    std::string lines;
    for (double loss : many.losses) absl::StrAppendFormat(&lines, "%a\n", loss);
    write("--losses", file, lines);
  }
  if (const int64_t count = absl::GetFlag(FLAGS_sample); count > 0) {
    out << "\nSample:\n"
        << generate(sharded, vocab, {ids.begin(), ids.begin() + std::min<int64_t>(12, config.context)}, count, mesh)
        << "\n";
  }
  return 0;
}

// absl::ParseCommandLine ends the program with code 1 on a bad flag; this one reports, so that the caller can use
// code 2.
void parse_flags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg == "--help") continue;
    if (arg.rfind("--", 0) != 0) throw UsageError(absl::StrCat("'", arg, "' is not a flag; --help lists them"));
    std::string name = arg.substr(2), value;
    const auto equals = name.find('=');
    const bool has_value = equals != std::string::npos;
    if (has_value) value = name.substr(equals + 1), name = name.substr(0, equals);
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) throw UsageError(absl::StrCat("unknown flag --", name, "; --help lists them"));
    if (!has_value) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < argc) {
        value = argv[++i];
      } else {
        throw UsageError(absl::StrCat("--", name, " needs a value"));
      }
    }
    std::string error;
    if (!flag->ParseFrom(value, &error))
      throw UsageError(absl::StrCat("--", name, " ", value, ": ", error.empty() ? "not a value of its type" : error));
  }
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains a small language model on one device and on a mesh, and compares.");
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--help") absl::ParseCommandLine(argc, argv);
    }
    parse_flags(argc, argv);
    return run();
  } catch (const UsageError& e) {
    std::cerr << "train_lm: " << e.what() << "\n";
    return 2;
  } catch (const c10::Error& e) {
    std::cerr << "train_lm: " << e.what_without_backtrace() << "\n";
    return 1;
  }
}
