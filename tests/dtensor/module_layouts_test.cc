// ModuleLayouts as a file, and the memory that a search predicts for them by kind.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/search_module_layouts.h"
#include "mesh/world.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using testing::make_mlps;
using torch::Tensor;

// ------------------------------------------------------------ files

std::string layouts_path() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + "/module_layouts.json";
}

ModuleLayouts some_layouts() {
  ModuleLayouts layouts{{{"dp", 2}, {"tp", 2}},
                        {{"*.up", ColwiseParallel()}, {"*.down", RowwiseParallel({.output = Shard(1)})}},
                        {"*"},
                        {}};
  layouts.settings = {{"checkpoint", 1}, {"offset", -3}};
  layouts.micro_batches = 8, layouts.stages = 4, layouts.stages_per_rank = 2, layouts.schedule = "interleaved 1F1B";
  layouts.step.product_seconds = 0.25, layouts.step.peak_bytes = 1 << 20;
  layouts.memory.gradients = 1234567;
  return layouts;
}

std::vector<std::string> placements_in(const ModuleLayouts& layouts) {
  const ModelWithLoss made = make_mlps({3, {}});
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  apply_layouts(*made.model, mesh, layouts);
  std::vector<std::string> result;
  for (const auto& p : made.model->named_parameters())
    result.push_back(p.key() + " " + to_string(DTensor(p.value()).placements()));
  return result;
}

TEST_CASE("ModuleLayouts: a file has the experts and their mesh dim", "[dtensor][module_layouts]") {
  ModuleLayouts layouts = some_layouts();
  layouts.mesh = {{"dp", 2}, {"ep", 4}, {"tp", 2}};
  layouts.experts = {"layers.*.experts", "last"};
  layouts.save(layouts_path());
  const ModuleLayouts loaded = ModuleLayouts::load(layouts_path());
  CHECK(loaded.mesh == layouts.mesh);
  CHECK(loaded.experts == layouts.experts);
  layouts.mesh = some_layouts().mesh;
  CHECK_THAT(error_text([&] { layouts.save(layouts_path()); }),
             Catch::Contains("'experts' has 'layers.*.experts, last', and 'mesh' no dim for them after 'dp'"));
}

TEST_CASE("ModuleLayouts: a file has the mesh dim for sequences and overlap", "[dtensor][module_layouts]") {
  ModuleLayouts layouts = some_layouts();
  layouts.mesh = {{"dp", 2}, {"ep", 4}, {"cp", 8}, {"tp", 2}};
  layouts.experts = {"layers.*.experts"}, layouts.context_dim = "cp", layouts.overlap = true;
  layouts.save(layouts_path());
  const ModuleLayouts loaded = ModuleLayouts::load(layouts_path());
  CHECK(loaded.context_dim == "cp");
  CHECK(loaded.overlap);
  CHECK(loaded.name() == layouts.name());
  CHECK(loaded.name().find(") overlap") != std::string::npos);
  const auto fault = [&] { return error_text([&] { layouts.save(layouts_path()); }); };
  layouts.mesh = {{"dp", 2}, {"cp", 8}, {"tp", 2}};
  CHECK_THAT(fault(), Catch::Contains("'mesh' no dim for them after 'dp'"));
  layouts.mesh = {{"dp", 2}, {"cp", 8}, {"ep", 4}, {"tp", 2}};
  CHECK_THAT(fault(), Catch::Contains("'context_dim' is 'cp', and the mesh dim before the tensor dim 'ep'"));
  layouts.mesh = {{"dp", 2}, {"tp", 2}};
  CHECK_THAT(fault(), Catch::Contains("'mesh' has 2 dims; expected the data dim and the tensor dim"));
  layouts.mesh = {{"dp", 2}, {"fsdp", 2}, {"ep", 4}, {"cp", 8}, {"tp", 2}}, layouts.shard_dim = "fsdp";
  layouts.save(layouts_path());
  CHECK(ModuleLayouts::load(layouts_path()).shard_dim == "fsdp");
  layouts.mesh = {{"dp", 2}, {"ep", 4}, {"cp", 8}, {"tp", 2}};
  CHECK_THAT(fault(), Catch::Contains("'shard_dim' is 'fsdp', and the mesh dim after the data dim 'ep'"));
}

TEST_CASE("ModuleLayouts: a file brings the same layouts back", "[dtensor][module_layouts]") {
  const ModuleLayouts layouts = some_layouts();
  layouts.save(layouts_path());
  const ModuleLayouts loaded = ModuleLayouts::load(layouts_path());
  CHECK(loaded.mesh == layouts.mesh);
  CHECK((loaded.styles.entries == layouts.styles.entries));
  CHECK(loaded.groups == layouts.groups);
  CHECK(loaded.settings == layouts.settings);
  CHECK(loaded.name() ==
        "dp=2 tp=2 stages=4 stages_per_rank=2 interleaved 1F1B checkpoint=1 offset=-3 micro_batches=8 "
        "fully_shard(*)");
  CHECK(loaded.name() == layouts.name());
  CHECK(loaded.step.seconds() == 0);  // what was predicted is for people
  CHECK(loaded.memory.gradients == 0);
  std::ifstream file(layouts_path());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text == layouts.to_json());
  CHECK(text.find("\"seconds\": 0.25") != std::string::npos);
  CHECK(text.find("\"gradients\": 1234567") != std::string::npos);

  const std::vector<std::string> placements = placements_in(loaded);
  CHECK(placements == placements_in(layouts));
  CHECK(placements.front() == "0.up.weight _S(0, 2)S(0)");
}

TEST_CASE("ModuleLayouts: missing fields have their defaults", "[dtensor][module_layouts]") {
  std::ofstream(layouts_path()) << R"({"format": "dtensor module layouts", "version": 1, "mesh": {"dp": 4, "tp": 1}})";
  const ModuleLayouts loaded = ModuleLayouts::load(layouts_path());
  CHECK(loaded.name() == "dp=4 tp=1");
  CHECK(loaded.styles.entries.empty());
}

TEST_CASE("ModuleLayouts: errors of files name the file and the field", "[dtensor][module_layouts]") {
  const std::string whole = some_layouts().to_json();
  const auto has = [&](const std::string& from, const std::string& to, const std::string& part) {
    std::string text = whole;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(layouts_path()) << text;
    CHECK_THAT(error_text([] { ModuleLayouts::load(layouts_path()); }),
               Catch::Contains("'" + layouts_path() + "' is no module layouts: ") && Catch::Contains(part));
  };
  has("\"groups\"", "\"group\"", "unknown field 'group'");
  has("\"micro_batches\": 8", "\"micro_batches\": \"8\"", "'micro_batches' is \"8\"; expected a whole number");
  has("\"micro_batches\": 8", "\"micro_batches\": 0", "'micro_batches' is 0; it must be at least 1");
  has("\"stages\": 4", "\"stages\": 4.5", "'stages' is 4.5; expected a whole number");
  has("\"stages\": 4", "\"stages\": 5", "'stages_per_rank', 2, does not divide 'stages', 5");
  has("\"stages\": 4", "\"stages\": 18446744073709551613", "'stages' is 18446744073709551613; it must be at most");
  has("\"stages\": 4,\n  \"stages_per_rank\": 2", "\"stages\": 1,\n  \"stages_per_rank\": 1",
      "'schedule' is 'interleaved 1F1B', and 'stages' is 1, which is no pipeline");
  has("\"micro_batches\": 8", "\"micro_batches\": 7", "micro_batches is 7; it must be a multiple of ranks, 2");
  has("\"dp\": 2", "\"dp\": null", "'mesh.dp' is null; expected a whole number");
  has("\"dp\": 2,", "", "'mesh' has 1 dims; expected the data dim and the tensor dim");
  has("\"checkpoint\": 1", "\"checkpoint\": true", "'settings.checkpoint' is true");
  has("\"*\"\n", "7\n", "'groups' is 7; expected a text");
  has("\"pattern\": \"*.up\"", "\"pattern\": 1", "'pattern' is 1; expected a text");
  has("\"output\": \"S(1)\"", "\"output\": 1", "'output' is 1; expected a text");
  has("ColwiseParallel", "Colwise", "the entry of '*.up': no style is called 'Colwise'");
  has("\"interleaved 1F1B\"", "\"2F2B\"", "no schedule is called '2F2B'");
  has("module layouts", "parallel plan", "made by another version, or no module layouts");
  CHECK_THAT(error_text([] { ModuleLayouts::load("/nowhere/layouts.json"); }),
             Catch::Contains("[ModuleLayouts::load] cannot read '/nowhere/layouts.json'"));
  CHECK_THAT(error_text([] { some_layouts().save("/nowhere/layouts.json"); }),
             Catch::Contains("[ModuleLayouts::save] cannot write '/nowhere/layouts.json'"));
}

TEST_CASE("ModuleLayouts: save() refuses what load() refuses", "[dtensor][module_layouts]") {
  const auto text = [](const std::function<void(ModuleLayouts&)>& change) {
    ModuleLayouts layouts = some_layouts();
    change(layouts);
    return error_text([&] { layouts.save("/nowhere/layouts.json"); });
  };
  CHECK_THAT(text([](auto& l) { l.mesh.pop_back(); }),
             Catch::Contains("[ModuleLayouts::save] 'mesh' has 1 dims; expected the data dim"));
  CHECK_THAT(text([](auto& l) { l.micro_batches = 0; }), Catch::Contains("'micro_batches' is 0; it must be at least"));
  CHECK_THAT(text([](auto& l) { l.stages = 1, l.stages_per_rank = 1; }), Catch::Contains("which is no pipeline"));
  CHECK_THAT(text([](auto& l) { l.styles.entries[0].style.kind = "Colwise"; }), Catch::Contains("no style is called"));
}

TEST_CASE("ModuleLayouts: a file of many stages is read without making their schedule", "[dtensor][module_layouts]") {
  std::ofstream(layouts_path()) << R"({"format": "dtensor module layouts", "version": 1, "mesh": {"dp": 4, "tp": 1},
    "stages": 1000000000000000, "schedule": "1F1B"})";
  CHECK(ModuleLayouts::load(layouts_path()).stages == 1000000000000000);
}

// ------------------------------------------------------------ memory by kind

// Bytes of one layer on a rank: up is 12 x 6 and 12, down 6 x 12 and 6, all floats. Over tp up has half of its rows,
// down half of its columns; over dp groups halve the first dim of each.
constexpr int64_t kReplicatedOverData = 4 * (6 * 6 + 6 + 6 * 6 + 6);
constexpr int64_t kSharded = 4 * (3 * 6 + 3 + 3 * 6 + 3);

// Of the second step of 8 layers.
int64_t peak_by_hand(const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options) {
  const DeviceMesh mesh(World::abstract(4), {2, 2}, {"dp", "tp"});
  set_cost_model(mesh.world(), *options.cost_model);
  const MeshScope on_mesh(mesh);
  const ModelWithLoss made = make_mlps({8, {}});
  apply_layouts(*made.model, mesh, layouts);
  const std::vector<Tensor> inputs = {zeros({16, 4, 6}, mesh, {Shard(0), Replicate()}, {.dtype = at::kFloat})};
  const auto optimizer = options.optimizer(made.model->parameters());
  const auto step = [&] {
    made.loss(inputs).backward();
    optimizer->step();
    made.model->zero_grad();
  };
  step();
  return predict_step(step, mesh.world()).peak_bytes;
}

TEST_CASE("search_module_layouts: memory by kind, counted by hand", "[dtensor][module_layouts]") {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.cost_model = testing::round_numbers();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 2; };
  options.optimizer = [](std::vector<Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);  // two states as large as a parameter
  };
  options.between_layers = torch::empty({16, 4, 6}, at::kMeta);
  const std::vector<Tensor> inputs = {torch::zeros({16, 4, 6})};
  const MakeModel make = make_mlps;
  for (const int64_t stages : {1, 2}) {
    options.ranks = 4 * stages, options.stages = {stages}, options.micro_batches = {stages};
    options.layers = 8;
    internal::TriedModel tried{make, inputs, options};
    internal::run_on_one_rank(tried);
    internal::LayoutTrials trials(tried, internal::model_arrangements(options, inputs).front());
    for (const bool groups : {false, true}) {
      const internal::LayoutTrial& trial =
          trials.run({groups, false, {internal::ClassStyle::kFirst, internal::ClassStyle::kSecond}});
      CAPTURE(trial.layouts.name(), trial.failure);
      REQUIRE(trial.ran);
      const LayoutMemory extrapolated = trial.layouts.memory;
      trials.run_whole(trial);
      REQUIRE(trial.is_whole);
      const LayoutMemory& whole = trial.layouts.memory;
      const int64_t layers = 8 / stages, parameters = layers * (groups ? kSharded : kReplicatedOverData);
      for (const LayoutMemory& memory : {extrapolated, whole}) {
        CHECK(memory.parameters == parameters);
        CHECK(memory.gradients ==
              (stages == 1 ? parameters : layers * kReplicatedOverData));  // unreduced in a pipeline
        CHECK(memory.optimizer_states == 2 * parameters);
        CHECK(memory.activations > 0);
        CHECK((memory.gathered > 0) == groups);
        CHECK(memory.gathered < kReplicatedOverData * layers);  // not all layers at once
      }
      if (stages == 1)
        CHECK(whole.activations + whole.gathered == peak_by_hand(trial.layouts, options) - 4 * parameters);
    }
  }
}

TEST_CASE("search_module_layouts: explain() has the memory by kind", "[dtensor][module_layouts]") {
  SearchModuleLayoutsOptions options = testing::slow_ranks();
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  const ModuleLayoutSearch found = search_module_layouts(testing::make_language_model, inputs, options);
  CHECK(found.best.memory.optimizer_states == 0);
  CHECK(found.best.memory.parameters > 0);
  CHECK(found.explain().find("\n  at the peak: " + found.best.memory.to_string() + "\n") != std::string::npos);
  CHECK(LayoutMemory{1024, 2048, 4096, 0, 1 << 20}.to_string() ==
        "parameters 1024 B, gradients 2048 B, optimizer states 4096 B, activations and other 1.0 MiB");
  CHECK(LayoutMemory{1024, 2048, 4096, 512, 1 << 20}.to_string() ==
        "parameters 1024 B, gradients 2048 B, optimizer states 4096 B, gathered parameters 512 B, "
        "activations and other 1.0 MiB");
}

}  // namespace
}  // namespace dtensor
