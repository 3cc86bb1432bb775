// search_module_layouts() over pipelines: the step and the memory of one pipeline rank, as a program written by hand
// has them, the search against all choices, and what is refused.
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/advise_module_layouts.h"
#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/step_difference.h"
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

using testing::make_blocks;
using testing::make_mlps;
using testing::round_numbers;
using testing::sequences;
using torch::Tensor;

// Two nodes of 4 ranks; each pipeline rank has one.
SearchModuleLayoutsOptions two_nodes() {
  SearchModuleLayoutsOptions options;
  options.ranks = 8;
  options.cost_model = round_numbers();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 2; };
  options.optimizer = [](std::vector<Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);
  };
  options.max_steps = 8;
  options.layers = 9;
  options.stages = {2};
  options.micro_batches = {4};
  options.between_layers = torch::empty({16, 8, 32}, at::kMeta);
  return options;
}

// The program of one pipeline rank, on its own mesh.
class RankProgram {
 public:
  RankProgram(const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options, int64_t layers)
      : mesh_(World::abstract(layouts.mesh[0].second * layouts.mesh[1].second),
              {layouts.mesh[0].second, layouts.mesh[1].second}, {"dp", "tp"}) {
    set_cost_model(mesh_.world(), *options.cost_model);
    const MeshScope on_mesh(mesh_);
    made_ = make_blocks({layers, {}});
    apply_layouts(*made_.model, mesh_, layouts);
    optimizer_ = options.optimizer(made_.model->parameters());
    const int64_t rows = 16 / layouts.micro_batches;
    for (int i = 0; i < 2; ++i)
      batch_.push_back(zeros({rows, 8}, mesh_, {Shard(0), Replicate()}, {.dtype = at::kLong}));
  }

  Tensor forward() {
    const MeshScope on_mesh(mesh_);
    const DelayGradientReduction delay;
    return made_.loss(batch_);
  }
  static void backward(const Tensor& loss) {
    const DelayGradientReduction delay;
    loss.backward();
  }
  void update() {
    reduce_gradients(made_.model->parameters());
    optimizer_->step();
  }
  void zero_grad() { made_.model->zero_grad(); }
  // The actions of the first pipeline rank in their order, the one that has most in flight.
  void step(const PipelineSchedule& schedule) {
    zero_grad();
    std::deque<Tensor> losses;
    for (const PipelineAction& action : schedule.actions[0]) {
      if (action.kind == PipelineAction::Kind::kForward) {
        losses.push_back(forward());
      } else {
        backward(losses.front());
        losses.pop_front();
      }
    }
    update();
  }
  StepPrediction predicted(const std::function<void()>& run) const { return predict_step(run, mesh_.world()); }

 private:
  DeviceMesh mesh_;
  ModelWithLoss made_;
  std::vector<Tensor> batch_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

double seconds_of(const StepPrediction& step, const std::string& name) {
  double seconds = 0;
  for (const PredictedCollectives& row : step.communication) {
    if (row.name() == name) seconds += row.seconds;
  }
  return seconds;
}

// Against simulate() with the times of the program's forward and backward, once it has gradients.
void check_step(const ModuleLayouts& found, const SearchModuleLayoutsOptions& options) {
  CAPTURE(found.name(), found.styles.to_string(), found.step.to_string());
  const int64_t layers = (options.layers + found.stages - 1) / found.stages * found.stages_per_rank;
  const auto per_rank = static_cast<double>(found.stages_per_rank);
  const PipelineSchedule schedule = make_pipeline_schedule(found.schedule, found.stages / found.stages_per_rank,
                                                           found.stages_per_rank, found.micro_batches);
  RankProgram program(found, options, layers);
  RankProgram::backward(program.forward());
  program.update();
  program.zero_grad();
  if (found.micro_batches > 1) RankProgram::backward(program.forward());  // the others add to its gradients
  Tensor loss;
  const double forward = program.predicted([&] { loss = program.forward(); }).seconds() / per_rank;
  const double backward = program.predicted([&] { RankProgram::backward(loss); }).seconds() / per_rank;
  loss = Tensor();
  const double update = program.predicted([&] { program.update(); }).seconds();

  const bool sharded = found.styles.to_string().find("output S(1)") != std::string::npos;
  const int64_t bytes =
      16 / found.micro_batches / found.mesh[0].second * 8 * 32 * 4 / (sharded ? found.mesh[1].second : 1);
  const bool crosses = options.ranks > 4;
  const double transfer = static_cast<double>(bytes) / (crosses ? 1e9 : 1e10);
  PipelineTimes times{forward, backward, backward / 2, backward / 2, 0};
  const double alone = schedule.simulate(times).seconds;
  times.transfer = transfer;
  const double all = schedule.simulate(times).seconds;
  // The gradient of the loss itself, which counts as forward, makes a difference for split backwards.
  const double epsilon = found.schedule == "ZB-H1" ? 1e-4 : 1e-9;
  const double work = static_cast<double>(found.micro_batches) * per_rank * (forward + backward);
  CHECK(found.step.seconds() == Approx(all + update).epsilon(epsilon));
  CHECK(found.step.bubble_seconds == Approx(alone - work).epsilon(100 * epsilon));
  CHECK(found.step.bubble_seconds > 0);
  CHECK(seconds_of(found.step, "permute(pp)") == Approx(all - alone).epsilon(100 * epsilon));
  for (const PredictedCollectives& row : found.step.communication) {
    if (row.mesh_dims == "pp") CHECK(row.between_nodes == crosses);
    if (row.mesh_dims == "pp") CHECK(row.bytes == row.count * bytes);
    if (row.mesh_dims == "tp") CHECK_FALSE(row.between_nodes);
  }
  if (found.stages_per_rank > 1 || found.schedule == "ZB-H1") return;
  // Copies of parameters in other layouts, which forwards share, count for each micro-batch.
  const StepPrediction whole = program.predicted([&] { program.step(schedule); });
  CHECK(found.step.peak_bytes >= whole.peak_bytes);
  CHECK(static_cast<double>(found.step.peak_bytes) <= 1.015 * static_cast<double>(whole.peak_bytes));
}

struct PipelineCase {
  int64_t ranks, stages, micro_batches;
  const char* schedule;
};

// 9 layers: 5 on the slowest rank of 2 stages, 3 on that of 4, and 6 where each of 2 ranks has two of 4 stages.
TEST_CASE("search_module_layouts: a pipeline is predicted as its slowest rank runs it, and as the schedule waits",
          "[dtensor][search_pipelines]") {
  const auto check = [](const PipelineCase& c, bool alternatives) {
    SearchModuleLayoutsOptions options = two_nodes();
    options.ranks = c.ranks, options.stages = {c.stages}, options.micro_batches = {c.micro_batches};
    options.schedules = {c.schedule};
    const ModuleLayoutSearch found = search_module_layouts(make_blocks, sequences(), options);
    CAPTURE(c.ranks, found.explain());
    CHECK(found.best.stages == c.stages);
    CHECK(found.best.name().find(" " + std::string(c.schedule) + " micro_batches=") != std::string::npos);
    check_step(found.best, options);
    for (const ModuleLayouts& other : found.alternatives) {
      if (alternatives) check_step(other, options);  // from 2 and 3 layers
    }
  };
  SECTION("1F1B") { check({8, 2, 4, "1F1B"}, true); }
  SECTION("1F1B within a node") { check({4, 2, 4, "1F1B"}, false); }
  SECTION("1F1B, four stages") { check({16, 4, 8, "1F1B"}, false); }
  SECTION("GPipe") { check({8, 2, 4, "GPipe"}, false); }
  SECTION("ZB-H1") { check({8, 2, 4, "ZB-H1"}, false); }
  SECTION("interleaved 1F1B") { check({8, 4, 4, "interleaved 1F1B"}, false); }
}

TEST_CASE("search_module_layouts: a pipeline rank with groups of fully_shard() is predicted as its program runs",
          "[dtensor][search_pipelines]") {
  SearchModuleLayoutsOptions options = two_nodes();
  const std::vector<Tensor> inputs = sequences();
  const MakeModel make = make_blocks;
  internal::TriedModel tried{make, inputs, options};
  internal::run_on_one_rank(tried);
  for (const int64_t micro_batches : {4, 8}) {
    options.micro_batches = {micro_batches};
    internal::LayoutTrials trials(tried, internal::model_arrangements(options, inputs).front());
    const std::vector<internal::ClassStyle> styles(tried.classes.classes.size(), internal::ClassStyle::kFirst);
    const internal::LayoutTrial& trial = trials.run({true, true, styles});
    REQUIRE(trial.ran);
    REQUIRE(trial.layouts.groups == std::vector<std::string>{"blocks.*", ""});
    check_step(trial.layouts, options);
  }
}

// ------------------------------------------------------------ the search

TEST_CASE("search_module_layouts: with pipelines within 1 % of the best of all choices",
          "[dtensor][search_pipelines]") {
  const std::vector<Tensor> inputs = {torch::zeros({16, 4, 6})};
  SearchModuleLayoutsOptions options;
  options.ranks = 8;
  options.cost_model = round_numbers();
  options.cost_model->flops_per_second = 1e8;
  options.layers = 8;
  options.stages = {1, 2, 4};
  options.schedules = {"1F1B", "ZB-H1"};
  options.micro_batches = {2, 8};
  options.between_layers = torch::empty({16, 4, 6}, at::kMeta);
  const ModuleLayoutSearch found = search_module_layouts(make_mlps, inputs, options);
  CAPTURE(found.explain());
  CHECK(found.complete);
  internal::TriedModel tried{make_mlps, inputs, options};
  internal::run_on_one_rank(tried);
  int64_t steps = 0;
  double best = found.best.step.seconds();
  for (const internal::ModelArrangement& arrangement : internal::model_arrangements(options, inputs)) {
    internal::LayoutTrials trials(tried, arrangement);
    for (int n = 0; n < 36; ++n) {
      const auto style = [](int i) { return internal::kClassStyles[i % 3]; };
      const internal::LayoutTrial& trial = trials.run({n % 2 == 1, n / 2 % 2 == 1, {style(n / 4), style(n / 12)}});
      if (trial.fits) best = std::min(best, trial.layouts.step.seconds());
    }
    steps += trials.steps();
  }
  CHECK(found.best.step.seconds() <= 1.01 * best);
  CHECK(found.steps < steps / 2);
}

TEST_CASE("search_module_layouts: the bubble is a term of a step", "[dtensor][search_pipelines]") {
  SearchModuleLayoutsOptions options = two_nodes();
  options.micro_batches = {2, 8};
  options.max_steps = 24;
  const ModuleLayoutSearch found = search_module_layouts(make_blocks, sequences(), options);
  CHECK(found.best.step.to_string().find("\n  bubble ") != std::string::npos);
  StepPrediction other = found.best.step;
  other.bubble_seconds += 1e-3;
  CHECK(internal::step_difference(found.best.step, other) == "bubble +1.00 ms");
  CHECK(other.seconds() == Approx(found.best.step.seconds() + 1e-3));
}

TEST_CASE("advise_module_layouts: layouts with a pipeline", "[dtensor][search_pipelines]") {
  SearchModuleLayoutsOptions options = two_nodes();
  options.max_steps = 16;
  options.stages = {1, 2};
  options.micro_batches = {1, 4};
  ModuleLayouts now{{{"dp", 2}, {"tp", 2}}, {}, {}, {}};
  now.stages = 2, now.schedule = "1F1B", now.micro_batches = 1;
  now.memory.gradients = 1ll << 40;  // of another prediction
  const LayoutAdvice advice = advise_module_layouts(make_blocks, sequences(), now, options);
  CAPTURE(advice.explain());
  check_step(advice.now, options);
  const LayoutMemory& memory = advice.now.memory;
  CHECK(memory.gradients < advice.now.step.peak_bytes);
  CHECK(memory.parameters + memory.gradients + memory.optimizer_states + memory.gathered + memory.activations ==
        advice.now.step.peak_bytes);
  CHECK(advice.best.micro_batches == 4);
  CHECK(std::any_of(advice.changes.begin(), advice.changes.end(),
                    [](const AdvisedChange& c) { return c.reason.find("bubble +") != std::string::npos; }));
  now.stages = 4;  // 4 * 2 * 2 ranks
  CHECK_THAT(testing::error_text([&] { advise_module_layouts(make_blocks, sequences(), now, options); }),
             Catch::Contains("of 2 ranks together"));
}

TEST_CASE("search_module_layouts: errors of pipelines", "[dtensor][search_pipelines]") {
  const auto text = [](const std::function<void(SearchModuleLayoutsOptions&)>& change) {
    SearchModuleLayoutsOptions options = two_nodes();
    change(options);
    return testing::error_text([&] { search_module_layouts(make_blocks, sequences(), options); });
  };
  const auto has = [](const std::string& all, const std::string& part) {
    CAPTURE(all, part);
    CHECK(all.find(part) != std::string::npos);
  };
  has(text([](auto& o) { o.stages = {}; }), "stages has no numbers to try");
  has(text([](auto& o) { o.stages = {1, 0}; }), "stages has 0; each must be at least 1");
  has(text([](auto& o) { o.layers = 0; }), "stages of a pipeline need `layers`");
  has(text([](auto& o) { o.between_layers = Tensor(); }), "stages of a pipeline need `between_layers`");
  has(text([](auto& o) { o.between_layers = torch::empty({6, 8, 32}); }), "cannot be divided into 4 micro-batches");
  has(text([](auto& o) { o.schedules = {}; }), "schedules has no names to try");
  has(text([](auto& o) { o.schedules = {"1F1B", "2F2B"}; }), "no schedule is called '2F2B'; there are GPipe, 1F1B,");
  has(text([](auto& o) { o.stages = {16}; }), "stages has 16, and there are 9 layers");
  has(text([](auto& o) { o.stages = {3}; }), "8 ranks cannot be divided into 3 pipeline ranks, for 3 stages");
  has(text([](auto& o) { o.stages_per_rank = 0; }), "stages_per_rank is 0");
  has(text([](auto& o) { o.schedules = {"interleaved 1F1B"}, o.stages_per_rank = 3; }),
      "stages has 2, which 3 stages_per_rank do not divide");
  has(text([](auto& o) { o.ranks = 12; }), "a pipeline rank has 6 ranks, which are neither whole nodes of 4 ranks");
  has(text([](auto& o) { o.schedules = {"interleaved 1F1B"}, o.stages = {8}, o.micro_batches = {2}; }),
      "or no number of micro-batches is a multiple of the pipeline ranks");
  has(testing::error_text([] { make_pipeline_schedule("GPipe", 2, 2, 4); }), "GPipe has one stage on each rank");
}

}  // namespace
}  // namespace dtensor
