// search_module_layouts(): against all choices of small models, against plans written by hand, in a world with data,
// and errors.
#include "dtensor/search_module_layouts.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "examples/models/llama.h"
#include "mesh/world.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/long_tests.h"

namespace dtensor {
namespace {

using internal::ClassStyle;
using internal::ClassStyles;
using internal::kClassStyles;
using internal::LayoutTrial;
using internal::LayoutTrials;
using internal::TriedModel;
using testing::make_language_model;
using testing::round_numbers;
using testing::slow_ranks;
using torch::Tensor;
namespace nn = torch::nn;

// ------------------------------------------------------------ small models of random layers

struct RandomLayer {
  enum Kind { kTable, kLinear, kNorm } kind;
  int64_t from, to;
  bool residual;  // its input is added to its result
};

struct RandomModel {
  std::vector<RandomLayer> layers;
  int64_t batch, length;
  CostModel cost_model;
};

RandomModel random_model(unsigned seed) {
  std::mt19937 random(seed);
  const auto any = [&](const std::vector<int64_t>& of) { return of[random() % of.size()]; };
  const auto width = [&] { return any({4, 6, 24, 64, 256, 1000}); };
  RandomModel m{{}, any({8, 16, 64}), any({1, 4, 32}), round_numbers()};
  int64_t now = width();
  const int64_t layers = any({2, 3, 4});
  for (int64_t i = 0; i < layers; ++i) {
    if (i == 0 && any({0, 1}) == 1) {
      m.layers.push_back({RandomLayer::kTable, any({32, 1000}), now, false});
    } else if (any({0, 1, 2}) == 0) {
      m.layers.push_back({RandomLayer::kNorm, now, now, any({0, 1}) == 1});
    } else {
      const int64_t to = any({0, 1}) == 1 ? now : width();
      m.layers.push_back({RandomLayer::kLinear, now, to, to == now && any({0, 1}) == 1});
      now = to;
    }
  }
  m.cost_model.flops_per_second = any({0, 1}) == 1 ? 1e12 : 1e11;
  m.cost_model.within_node.fill({any({0, 1}) * 1e-6, 0, 1e10});
  return m;
}

ModelWithLoss make_random(const RandomModel& m) {
  auto model = std::make_shared<nn::ModuleList>();
  for (const RandomLayer& layer : m.layers) {
    if (layer.kind == RandomLayer::kTable) (*model)->push_back(nn::Embedding(layer.from, layer.to));
    if (layer.kind == RandomLayer::kLinear) (*model)->push_back(nn::Linear(layer.from, layer.to));
    if (layer.kind == RandomLayer::kNorm) (*model)->push_back(nn::LayerNorm(nn::LayerNormOptions({layer.to})));
  }
  return {model->ptr(), [model, layers = m.layers](const std::vector<Tensor>& inputs) {
            Tensor x = inputs.at(0);
            for (size_t i = 0; i < layers.size(); ++i) {
              Tensor y;
              if (layers[i].kind == RandomLayer::kTable) y = (*model)[i]->as<nn::Embedding>()->forward(x);
              if (layers[i].kind == RandomLayer::kLinear) y = (*model)[i]->as<nn::Linear>()->forward(x);
              if (layers[i].kind == RandomLayer::kNorm) y = (*model)[i]->as<nn::LayerNorm>()->forward(x);
              x = layers[i].residual ? x + y : y;
            }
            return x.square().mean();
          }};
}

std::vector<Tensor> inputs_of(const RandomModel& m) {
  if (m.layers[0].kind == RandomLayer::kTable) return {torch::zeros({m.batch, m.length}, torch::kLong)};
  return {torch::zeros({m.batch, m.length, m.layers[0].from})};
}

SearchModuleLayoutsOptions eight_ranks(int64_t tensor_size) {
  SearchModuleLayoutsOptions options;
  options.ranks = 8;
  options.cost_model = round_numbers();
  options.allows = [=](const DeviceMesh& mesh) { return mesh.size("tp") == tensor_size; };
  return options;
}

// All that LayoutTrials can try.
void for_each_choice(size_t classes, const std::function<void(const ClassStyles&)>& f) {
  int64_t all = 4;
  for (size_t c = 0; c < classes; ++c) all *= 3;
  for (int64_t n = 0; n < all; ++n) {
    ClassStyles styles{n % 2 == 1, n / 2 % 2 == 1, {}};
    int64_t rest = n / 4;
    for (size_t c = 0; c < classes; ++c, rest /= 3) styles.classes.push_back(kClassStyles[rest % 3]);
    f(styles);
  }
}

DeviceMesh mesh_of_eight(int64_t tensor_size, const CostModel& cost_model) {
  DeviceMesh mesh(World::abstract(8), {8 / tensor_size, tensor_size}, {"dp", "tp"});
  set_cost_model(mesh.world(), cost_model);
  return mesh;
}

TEST_CASE("search_module_layouts: within 1 % of the best of all choices of random models",
          "[dtensor][search_module_layouts]") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    for (const int64_t tensor_size : {8, 4, 2}) {
      if (!testing::long_tests() && (seed + static_cast<unsigned>(tensor_size) / 2) % 16 != 0) continue;
      const RandomModel m = random_model(seed);
      SearchModuleLayoutsOptions options = eight_ranks(tensor_size);
      options.cost_model = m.cost_model;
      const MakeModel make = [&](const ModelChoice&) { return make_random(m); };
      const std::vector<Tensor> inputs = inputs_of(m);
      const ModuleLayoutSearch found = search_module_layouts(make, inputs, options);
      CAPTURE(seed, tensor_size, found.explain());
      CHECK(found.complete);

      TriedModel tried{make, inputs, options};
      internal::run_on_one_rank(tried);
      LayoutTrials trials(tried, {mesh_of_eight(tensor_size, m.cost_model)});
      const LayoutTrial* best = nullptr;
      for_each_choice(tried.classes.classes.size(), [&](const ClassStyles& styles) {
        const LayoutTrial& trial = trials.run(styles);
        if (best == nullptr || internal::is_better(trial, *best)) best = &trial;
      });
      CAPTURE(best->layouts.name(), best->layouts.styles.to_string(), best->layouts.step.to_string());
      CHECK(best->fits);
      CHECK(found.best.step.seconds() >= best->layouts.step.seconds());
      CHECK(found.best.step.seconds() <= 1.01 * best->layouts.step.seconds());
    }
  }
}

// ------------------------------------------------------------ larger models

examples::LlamaConfig searched_llama() {
  examples::LlamaConfig config;
  config.kv_heads = config.heads;
  config.hidden = 192;
  config.layers = 2;
  return config;
}

ModelWithLoss make_llama(const examples::LlamaConfig& config) {
  auto model = std::make_shared<examples::LlamaImpl>(config);
  return {model, [model](const std::vector<Tensor>& inputs) {
            const Tensor scores = model->forward(inputs.at(0));
            return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), inputs.at(1).view({-1}));
          }};
}

// The plans of examples/models/parallelism.cc, predicted for a model.
StepPrediction predicted_llama(const examples::LlamaConfig& config, const std::vector<Tensor>& inputs,
                               const ModuleLayouts& layouts) {
  const DeviceMesh mesh(World::abstract(8), {layouts.mesh[0].second, layouts.mesh[1].second}, {"dp", "tp"});
  const MeshScope on_mesh(mesh);
  const ModelWithLoss made = make_llama(config);
  apply_layouts(*made.model, mesh, layouts);
  std::vector<Tensor> on;
  for (const Tensor& t : inputs) {
    on.push_back(zeros(t.sizes().vec(), mesh, {Shard(0), Replicate()}, {.dtype = t.scalar_type()}));
  }
  return predict_step([&] { made.loss(on).backward(); }, mesh.world());
}

std::vector<ModuleLayouts> plans_by_hand() {
  const std::vector<std::string> groups = {"blocks.*", ""};
  ParallelPlan of_blocks;
  for (const auto& entry : examples::llama_styles().entries) {
    if (entry.pattern.rfind("blocks", 0) == 0) of_blocks.entries.push_back(entry);
  }
  const ParallelPlan sequence = examples::llama_styles(/*sequence=*/true);
  const NamedNumbers dp = {{"dp", 8}, {"tp", 1}}, tp = {{"dp", 1}, {"tp", 8}}, two = {{"dp", 2}, {"tp", 4}};
  return {{dp, {}, {}, {}},        {dp, {}, groups, {}},
          {tp, of_blocks, {}, {}}, {tp, examples::llama_styles(), {}, {}},
          {tp, sequence, {}, {}},  {two, sequence, groups, {}}};
}

TEST_CASE("search_module_layouts: a Llama not worse than by the plans that are written by hand",
          "[dtensor][search_module_layouts]") {
  const examples::LlamaConfig config = searched_llama();
  const std::vector<Tensor> inputs(2, torch::zeros({16, 32}, torch::kLong));
  for (const int64_t tensor_size : {1, 4, 8}) {
    SearchModuleLayoutsOptions options;
    options.ranks = 8;
    options.max_steps = 400;
    options.allows = [&](const DeviceMesh& mesh) { return mesh.size("tp") == tensor_size; };
    std::vector<StepPrediction> by_hand;
    for (const ModuleLayouts& plan : plans_by_hand()) {
      if (plan.mesh[1].second != tensor_size) continue;
      by_hand.push_back(predicted_llama(config, inputs, plan));
      if (tensor_size == 4) options.max_bytes = by_hand.back().peak_bytes;
    }
    REQUIRE(!by_hand.empty());
    const ModuleLayoutSearch found =
        search_module_layouts([&](const ModelChoice&) { return make_llama(config); }, inputs, options);
    CHECK(found.gains.size() == 12);
    CHECK(found.best.step.peak_bytes <= options.max_bytes);
    for (const StepPrediction& step : by_hand) {
      CAPTURE(step.to_string(), found.explain());
      CHECK(found.best.step.seconds() <= step.seconds());
    }
  }
}

// ------------------------------------------------------------ the result

void copy_parameters(const nn::Module& from, nn::Module& to) {
  const torch::NoGradGuard no_grad;
  const auto source = from.parameters(), target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

TEST_CASE("search_module_layouts: the found layouts communicate as predicted, and give the loss of one device",
          "[dtensor][search_module_layouts]") {
  const std::vector<Tensor> inputs = {torch::randint(40, {4, 6}), torch::randint(40, {4, 6})};
  SearchModuleLayoutsOptions options = slow_ranks();
  const auto make = [](const ModelChoice&) {
    ModelWithLoss made = make_language_model();
    made.model->to(torch::kDouble);
    return made;
  };
  for (const bool groups : {false, true}) {
    if (groups) {
      options.optimizer = [](std::vector<Tensor> parameters) {
        return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);
      };
    }
    ModuleLayoutSearch found = search_module_layouts(make, inputs, options);
    while (groups && found.best.groups.empty()) {  // with less memory until parameters have to be sharded over dp
      options.max_bytes = found.best.step.peak_bytes - 1;
      found = search_module_layouts(make, inputs, options);
    }
    CAPTURE(found.explain());
    CHECK(!found.best.styles.entries.empty());
    CHECK(found.best.groups.empty() == !groups);

    const ModelWithLoss one = make({}), many = make({});
    copy_parameters(*one.model, *many.model);
    const Tensor loss = one.loss(inputs);
    loss.backward();

    const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
    set_cost_model(mesh.world(), *options.cost_model);
    const MeshScope on_mesh(mesh);
    apply_layouts(*many.model, mesh, found.best);
    std::vector<Tensor> on;
    for (const Tensor& t : inputs) on.push_back(distribute_tensor(t, mesh, {Shard(0), Replicate()}));
    std::map<std::string, int64_t> predicted;
    for (const auto& row : found.best.step.communication)
      predicted[std::string(to_string(row.collective))] += row.count;
    const CommDebugMode comm;
    const Tensor of_many = many.loss(on);
    of_many.backward();
    CHECK(comm.counts() == predicted);
    CHECK(torch::allclose(full_tensor(of_many), loss, 1e-12, 1e-12));
    for (const auto& p : one.model->named_parameters()) {
      const Tensor grad = full_tensor(many.model->named_parameters()[p.key()].grad());
      CAPTURE(p.key());
      CHECK(torch::allclose(grad, p.value().grad(), 1e-10, 1e-12));
    }
  }
}

TEST_CASE("search_module_layouts: the plan of a result is a file for parallelize_module()",
          "[dtensor][search_module_layouts]") {
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  const ModuleLayoutSearch found = search_module_layouts(make_language_model, inputs, slow_ranks());
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/search_module_layouts.json";
  found.best.styles.save(path);
  CHECK((ParallelPlan::load(path).entries == found.best.styles.entries));
  const ModuleLayoutSearch again = search_module_layouts(make_language_model, inputs, slow_ranks());
  CHECK(again.explain() == found.explain());  // the same at every call
  REQUIRE(found.alternatives.size() == 3);
  for (const ModuleLayouts& other : found.alternatives) CHECK(other.step.seconds() >= found.best.step.seconds());
  bool saves = false;
  for (const StyleGain& gain : found.gains) {
    CHECK(gain.seconds >= 0);
    CHECK((gain.style || gain.reason.empty()));
    saves = saves || (gain.seconds > 0 && gain.reason.find("matrix products +") != std::string::npos);
  }
  CHECK(saves);
}

TEST_CASE("search_module_layouts: max_steps bounds the steps that are run", "[dtensor][search_module_layouts]") {
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  SearchModuleLayoutsOptions options = slow_ranks();
  options.allows = nullptr;
  std::vector<int64_t> steps;
  options.progress = [&](int64_t n, double seconds) {
    steps.push_back(n);
    CHECK(seconds > 0);
  };
  for (const int64_t max_steps : {1, 2, 30}) {
    steps.clear();
    options.max_steps = max_steps;
    const ModuleLayoutSearch found = search_module_layouts(make_language_model, inputs, options);
    CHECK(!found.complete);
    REQUIRE(!steps.empty());
    CHECK(steps.front() == 1);
    for (size_t i = 1; i < steps.size(); ++i) CHECK(steps[i] >= steps[i - 1]);
    CHECK(steps.back() == found.steps);
    CHECK(found.steps <= max_steps + static_cast<int64_t>(found.gains.size()) + 1);
    CHECK(found.explain().find("max_steps ended the search") != std::string::npos);
  }
}

// What lets a choice be refused without running it.
TEST_CASE("search_module_layouts: parameters and gradients are never more than a step holds",
          "[dtensor][search_module_layouts]") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    const RandomModel m = random_model(seed);
    const MakeModel make = [&](const ModelChoice&) { return make_random(m); };
    const std::vector<Tensor> inputs = inputs_of(m);
    SearchModuleLayoutsOptions options = eight_ranks(4), none_fits = eight_ranks(4);
    none_fits.max_bytes = 0;
    TriedModel tried{make, inputs, options}, refused{make, inputs, none_fits};
    internal::run_on_one_rank(tried);
    internal::run_on_one_rank(refused);
    LayoutTrials trials(tried, {mesh_of_eight(4, round_numbers())}),
        bounds(refused, {mesh_of_eight(4, round_numbers())});
    int64_t n = 0;
    for_each_choice(tried.classes.classes.size(), [&](const ClassStyles& styles) {
      if (n++ % 7 != 0) return;
      const LayoutTrial &trial = trials.run(styles), &bound = bounds.run(styles);
      CHECK(trial.failure == "");
      CHECK(bound.layouts.step.seconds() == 0);
      CHECK(bound.layouts.step.peak_bytes > 0);
      CHECK(bound.layouts.step.peak_bytes <= trial.layouts.step.peak_bytes);
    });
    CHECK(bounds.steps() == 0);
  }
}

TEST_CASE("search_module_layouts: states of the optimizer count", "[dtensor][search_module_layouts]") {
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  SearchModuleLayoutsOptions options = slow_ranks();
  options.ranks = 1;  // there the layouts are the same
  options.allows = nullptr;
  const StepPrediction without = search_module_layouts(make_language_model, inputs, options).best.step;
  options.optimizer = [](std::vector<Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);
  };
  const StepPrediction with = search_module_layouts(make_language_model, inputs, options).best.step;
  CHECK(with.live_bytes > 2 * without.live_bytes);
}

TEST_CASE("search_module_layouts: a model without repeated layers is one group of fully_shard()",
          "[dtensor][search_module_layouts]") {
  const auto make = [](const ModelChoice&) {
    nn::Sequential model(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 64));
    return ModelWithLoss{model.ptr(), [model](const std::vector<Tensor>& in) {
                           auto forward = model;
                           return forward->forward(in[0]).square().mean();
                         }};
  };
  SearchModuleLayoutsOptions options = slow_ranks();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  const std::vector<Tensor> inputs = {torch::zeros({4, 64})};
  const ModuleLayoutSearch replicated = search_module_layouts(make, inputs, options);
  CHECK(replicated.best.groups.empty());
  options.max_bytes = replicated.best.step.peak_bytes - 1;
  CHECK(search_module_layouts(make, inputs, options).best.groups == std::vector<std::string>{""});
}

// ------------------------------------------------------------ classes

std::vector<std::vector<std::string>> patterns_in(nn::Module& model) {
  std::vector<std::vector<std::string>> patterns;
  for (const auto& c : internal::module_classes(model).classes) patterns.push_back(c.patterns);
  return patterns;
}

struct TwoBlocksImpl : nn::Module {
  TwoBlocksImpl()
      : first(register_module("first", testing::Mlp())),
        other(register_module("other", testing::Mlp())),
        wider(register_module("wider", testing::Mlp(6, 12))) {}
  testing::Mlp first, other, wider;
};

TEST_CASE("module_classes: places of repeated layers, whatever their names", "[dtensor][search_module_layouts]") {
  examples::Llama llama(searched_llama());
  CHECK(patterns_in(*llama) == std::vector<std::vector<std::string>>{{"tokens"},
                                                                     {"blocks.*.attention_norm"},
                                                                     {"blocks.*.wq"},
                                                                     {"blocks.*.wk"},
                                                                     {"blocks.*.wv"},
                                                                     {"blocks.*.wo"},
                                                                     {"blocks.*.feed_forward_norm"},
                                                                     {"blocks.*.gate"},
                                                                     {"blocks.*.up"},
                                                                     {"blocks.*.down"},
                                                                     {"norm"},
                                                                     {"head"}});
  CHECK(internal::module_classes(*llama).groups == std::vector<std::string>{"blocks.*", ""});

  TwoBlocksImpl two;  // "*.up" would match those of the wider block, too
  CHECK(patterns_in(two) == std::vector<std::vector<std::string>>{
                                {"first.up", "other.up"}, {"first.down", "other.down"}, {"wider.up"}, {"wider.down"}});
  CHECK(internal::module_classes(two).groups == std::vector<std::string>{"first", "other", ""});

  nn::Sequential stack(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4));  // no layers: each has a single module
  CHECK(patterns_in(*stack) == std::vector<std::vector<std::string>>{{"0"}, {"2"}});
  CHECK(internal::module_classes(*stack).groups == std::vector<std::string>{""});

  nn::Sequential blocks{testing::Mlp(), testing::Mlp()};
  CHECK(internal::module_classes(*blocks).groups == std::vector<std::string>{"*"});
  blocks->push_back(blocks->ptr<testing::MlpImpl>(0));  // one module at two paths
  CHECK(patterns_in(*blocks) == std::vector<std::vector<std::string>>{{"0.up", "1.up"}, {"0.down", "1.down"}});

  nn::Sequential none{nn::ReLU(), nn::Tanh()};
  CHECK(patterns_in(*none).empty());
}

// ------------------------------------------------------------ errors

TEST_CASE("search_module_layouts: errors", "[dtensor][search_module_layouts]") {
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  const auto text = [&](const MakeModel& make, const std::function<void(SearchModuleLayoutsOptions&)>& change) {
    SearchModuleLayoutsOptions options = slow_ranks();
    if (change) change(options);
    return testing::error_text([&] { search_module_layouts(make, inputs, options); });
  };
  const auto has = [](const std::string& all, const std::string& part) {
    CAPTURE(all, part);
    CHECK(all.find(part) != std::string::npos);
  };
  has(text(nullptr, nullptr), "make is an empty function");
  has(text([](const ModelChoice&) { return ModelWithLoss(); }, nullptr), "[MakeModel] the function returned no model");
  has(text(
          [](const ModelChoice&) {
            return ModelWithLoss{make_language_model().model, nullptr};
          },
          nullptr),
      "an empty function for the loss");
  has(text(
          [](const ModelChoice&) {
            return ModelWithLoss{std::make_shared<nn::ReLUImpl>(), [](const auto& in) { return in[0].sum(); }};
          },
          nullptr),
      "has no parameters, so that there are no layouts to choose");
  has(text(make_language_model, [](auto& o) { o.ranks = 0; }), "ranks is 0");
  has(text(make_language_model, [](auto& o) { o.max_steps = 0; }), "max_steps is 0");
  has(text(make_language_model, [](auto& o) { o.allows = [](const auto&) { return false; }; }), "no mesh of 4 ranks");
  has(text([](const ModelChoice&) -> ModelWithLoss { throw std::runtime_error("no such model"); }, nullptr),
      "no such model");
  has(text(make_language_model, [](auto& o) { o.max_bytes = 1000; }),
      "no choice that was tried fits within 1000 B; the nearest is dp=2 tp=2 fully_shard(");
  has(text(make_language_model, [](auto& o) { o.max_bytes = 1000; }), ", which needs at least ");
  // Runs on one rank, and nowhere else.
  const auto on_one_rank = [](const ModelChoice&) {
    ModelWithLoss made = make_language_model();
    const auto loss = made.loss;
    made.loss = [loss](const std::vector<Tensor>& in) {
      TORCH_CHECK(DTensor(in[0]).mesh().size() == 1, "too many ranks");
      return loss(in);
    };
    return made;
  };
  has(text(on_one_rank, nullptr), "every choice failed; dp=2 tp=2: too many ranks");

  nn::Linear layer(4, 4);
  const DeviceMesh mesh(World::local(2), {1, 2}, {"dp", "tp"});
  ModuleLayouts layouts;
  has(testing::error_text([&] { apply_layouts(*layer, mesh, layouts); }), "'mesh' has 0 dims");
  layouts.mesh = {{"dp", 1}, {"tp", 2}};
  layouts.groups = {"layers.*"};
  has(testing::error_text([&] { apply_layouts(*layer, mesh, layouts); }), "'layers.*' of a group matches no module");
}

}  // namespace
}  // namespace dtensor
