// Plans of parallel styles: patterns, errors, files, and the reports on a module.
#include <torch/nn.h>

#include <cstdlib>
#include <fstream>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/parallel_style.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using testing::error_text;
using torch::Tensor;

const DeviceMesh& tp_mesh() {
  static const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  return mesh;
}
const DeviceMesh& grid_mesh() {
  static const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  return mesh;
}

struct LayerImpl : nn::Module {
  Tensor forward(const Tensor& x) { return wo(torch::relu(wq(norm(x)) + wk(norm(x)))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
  nn::Linear wq = register_module("wq", nn::Linear(4, 6)), wk = register_module("wk", nn::Linear(4, 6));
  nn::Linear wo = register_module("wo", nn::Linear(6, 4));
};
TORCH_MODULE(Layer);

struct ModelImpl : nn::Module {
  Tensor forward(const Tensor& x) { return head(layers->forward(x)); }
  nn::Sequential layers = register_module("layers", nn::Sequential(Layer(), Layer()));
  nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(4, 5).bias(false)));
};
TORCH_MODULE(Model);

ParallelPlan whole_plan() {
  return {{"layers.*.w[qk]", ColwiseParallel()},
          {"layers.*.wo", RowwiseParallel({.output = Shard(1)})},
          {"*.norm", SequenceParallel()},
          {"head", ParameterStyle({{"weight", Shard(1)}}, {.output = Replicate()})}};
}

std::map<std::string, Placements> layouts_of(const nn::Module& module) {
  std::map<std::string, Placements> layouts;
  for (const auto& p : module.named_parameters()) {
    if (is_dtensor(p.value())) layouts[p.key()] = DTensor(p.value()).placements();
  }
  return layouts;
}

std::string plan_path(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + "/" + name;
}

// The error of parallelize_module(), which leaves the module plain.
std::string plan_error(const ParallelPlan& plan, const ParallelizeOptions& options = {},
                       const DeviceMesh& mesh = tp_mesh()) {
  Model model;
  const std::string text = error_text([&] { parallelize_module(*model, mesh, plan, options); });
  CHECK(layouts_of(*model).empty());
  CHECK(model->forward(torch::ones({1, 2, 4})).sizes() == torch::IntArrayRef({1, 2, 5}));
  return text;
}

}  // namespace

TEST_CASE("parallel plan: patterns match paths with *, ? and [], and everything else is replicated") {
  Model model;
  parallelize_module(*model, tp_mesh(), {{"layers.*.w[qk]", ColwiseParallel()}, {"layers.?.wo", RowwiseParallel()}});
  for (const auto& [name, placements] : layouts_of(*model)) {
    INFO(name);
    Placement expected = Replicate();
    if (name.find(".wq.") != std::string::npos || name.find(".wk.") != std::string::npos) expected = Shard(0);
    if (name.find(".wo.weight") != std::string::npos) expected = Shard(1);
    CHECK(placements == Placements{expected});
  }
  CHECK(DTensor(model->head->weight).name() == "head.weight");

  Model other;
  parallelize_module(*other, tp_mesh(), {{"layers.[!1].wq", ColwiseParallel()}});
  CHECK(layouts_of(*other).at("layers.0.wq.weight") == Placements{Shard(0)});
  CHECK(layouts_of(*other).at("layers.1.wq.weight") == Placements{Replicate()});
}

TEST_CASE("parallel plan: a pattern that matches nothing is an error with the nearest paths") {
  CHECK_THAT(plan_error({{"layers.*.w[qk]", ColwiseParallel()}, {"layers.*.attn.wo", RowwiseParallel()}}),
             Catch::Contains("the pattern 'layers.*.attn.wo' matches no module") &&
                 Catch::Contains("the nearest are 'layers.0.wo', 'layers.1.wo'"));
  CHECK_THAT(plan_error({{"haed", ColwiseParallel()}}), Catch::Contains("the nearest are 'head'"));
  CHECK_THAT(plan_error({{"layer.1.w[qk]", ColwiseParallel()}}),
             Catch::Contains("the nearest are 'layers.1.wq', 'layers.1.wk'"));
  nn::Linear alone(2, 2);
  CHECK_THAT(error_text([&] {
               parallelize_module(*alone, tp_mesh(), {{"*", ColwiseParallel()}});
             }),
             Catch::Contains("no submodules, and \"\" is the module itself"));
}

TEST_CASE("parallel plan: two patterns with different styles for one module are an error that names both") {
  CHECK_THAT(plan_error({{"layers.*.w?", ColwiseParallel()}, {"*.wo", RowwiseParallel()}}),
             Catch::Contains("'layers.0.wo' matches two patterns with different styles: 'layers.*.w?', "
                             "ColwiseParallel, and '*.wo', RowwiseParallel"));
  Model model;
  CHECK_NOTHROW(parallelize_module(*model, tp_mesh(), {{"*.wq", ColwiseParallel()}, {"*.w[qk]", ColwiseParallel()}}));
}

TEST_CASE("parallel plan: styles that do not fit a module are errors, and the module stays plain") {
  CHECK_THAT(plan_error({{"layers.0", ColwiseParallel()}}),
             Catch::Contains("'layers.0', a ") && Catch::Contains("match its children") && Catch::Contains("input_fn"));
  CHECK_THAT(plan_error({{"layers.0.norm", RowwiseParallel()}}),
             Catch::Contains("'layers.0.norm', a torch::nn::LayerNormImpl, cannot be RowwiseParallel") &&
                 Catch::Contains("ParameterStyle"));
  CHECK_THAT(plan_error({{"head", ParameterStyle({{"bias", Shard(0)}})}}),
             Catch::Contains("has no parameter 'bias' of its own; it has weight"));
  CHECK_THAT(plan_error({{"*.wq", ColwiseParallel()}, {"head", ParameterStyle({{"weight", Shard(2)}})}}),
             Catch::Contains("head.weight"));
  CHECK_THAT(error_text([] { PrepareInput({}); }), Catch::Contains("[PrepareInput] no layout of the input"));
  CHECK_THAT(error_text([] { PrepareOutput({.input = Shard(0)}); }), Catch::Contains("[PrepareOutput] no layout"));
  nn::Conv2d grouped(nn::Conv2dOptions(4, 4, 1).groups(2));
  CHECK_THAT(error_text([&] {
               parallelize_module(*grouped, tp_mesh(), {{"", RowwiseParallel()}});
             }),
             Catch::Contains("with 2 groups, cannot be RowwiseParallel"));
}

TEST_CASE("parallel plan: styles built by hand are checked, and parameters must be on the mesh") {
  CHECK_THAT(plan_error({{"head", {"PrepareOutput", {}}}}),
             Catch::Contains("the entry of 'head': PrepareOutput has no layout of the output"));
  CHECK_THAT(plan_error({{"head", {"Diagonal", {}}}}), Catch::Contains("no style is called 'Diagonal'"));
  CHECK_THAT(plan_error({{"head", ParameterStyle({{"weight", Shard(0)}, {"weight", Shard(1)}})}}),
             Catch::Contains("the entry of 'head': it places the parameter 'weight' twice"));
  Model model;
  distribute_module(*model, DeviceMesh(grid_mesh().world(), {4}, {"tp"}));
  CHECK_THAT(
      error_text([&] {
        parallelize_module(*model, grid_mesh(), {{"head", PrepareInput({.input = Shard(0)})}}, {.mesh_dim = "tp"});
      }),
      Catch::Contains("'head.weight' is ") && Catch::Contains("not on mesh(dp=2, tp=2)"));
}

TEST_CASE("parallel plan: the mesh dim is named on a mesh with several") {
  CHECK_THAT(plan_error({{"head", ColwiseParallel()}}, {}, grid_mesh()),
             Catch::Contains("mesh(dp=2, tp=2) has 2 dims"));
  CHECK_THAT(plan_error({{"head", ColwiseParallel()}}, {.mesh_dim = "pp"}, grid_mesh()), Catch::Contains("pp"));
  CHECK_THAT(plan_error({}, {}, DeviceMesh()), Catch::Contains("no mesh"));
}

TEST_CASE("parallel plan: tied parameters with different layouts are an error") {
  Model model;
  model->head = nn::Linear(nn::LinearOptions(4, 6).bias(false));
  model->replace_module("head", model->head);
  std::dynamic_pointer_cast<LayerImpl>(model->layers->ptr(0))->wq->weight.set_data(model->head->weight.detach());
  CHECK_THAT(error_text([&] {
               parallelize_module(*model, tp_mesh(), {{"layers.0.wq", ColwiseParallel()}, {"head", RowwiseParallel()}});
             }),
             Catch::Contains("'layers.0.wq.weight' and 'head.weight' are one tensor") &&
                 Catch::Contains("choose styles that agree"));
  CHECK(layouts_of(*model).empty());
  const Tensor x = distribute_tensor(torch::ones({2, 4}), tp_mesh());
  parallelize_module(*model, tp_mesh(), {{"layers.0.wq", ColwiseParallel()}, {"head", ColwiseParallel()}});
  torch::linear(x, model->head->weight);
  CHECK_THAT(error_text([&] { check_styles_ran(*model); }),
             Catch::Contains("'layers.0.wq'") && !Catch::Contains("'head'"));
}

TEST_CASE("parallel plan: a module with two paths is matched by either, and gets one style") {
  nn::Linear shared(4, 4);
  nn::Sequential model({{"a", shared}, {"b", shared}});
  CHECK_THAT(error_text([&] {
               parallelize_module(*model, tp_mesh(), {{"a", ColwiseParallel()}, {"b", RowwiseParallel()}});
             }),
             Catch::Contains("two patterns with different styles: 'a', ColwiseParallel, and 'b', RowwiseParallel"));
  parallelize_module(*model, tp_mesh(), {{"b", ColwiseParallel()}});
  CHECK(DTensor(shared->weight).placements() == Placements{Shard(0)});
  CHECK(DTensor(model->forward(distribute_tensor(torch::ones({2, 4}), tp_mesh()))).placements() ==
        Placements{Shard(1)});
  CHECK_NOTHROW(check_styles_ran(*model));
}

TEST_CASE("parallel plan: a parameter that is distributed over dp keeps that, and gets the style's layout over tp") {
  Model model;
  distribute_module(*model, grid_mesh(), [](const std::string&, nn::Module& m, const DeviceMesh& mesh) {
    for (const auto& p : m.named_parameters(false)) shard_parameter(m, p.key(), mesh, {Shard(0), Replicate()});
  });
  const Tensor weight = full_tensor(model->head->weight);
  parallelize_module(*model, grid_mesh(), {{"head", RowwiseParallel()}, {"*.norm", PrepareInput({.input = Shard(1)})}},
                     {.mesh_dim = "tp"});
  const auto layouts = layouts_of(*model);
  CHECK(layouts.at("head.weight") == Placements{Shard(0), Shard(1)});
  CHECK(layouts.at("layers.0.norm.weight") == Placements{Shard(0), Replicate()});
  CHECK(layouts.at("layers.0.wq.weight") == Placements{Shard(0), Replicate()});
  CHECK(torch::equal(full_tensor(model->head->weight), weight));
  CHECK_THAT(error_text([&] {
               parallelize_module(*model, grid_mesh(), {{"head", ColwiseParallel()}}, {.mesh_dim = "tp"});
             }),
             Catch::Contains("'head' has a style already, RowwiseParallel"));
  CHECK(layouts_of(*model) == layouts);
}

TEST_CASE("parallel plan: a file brings the same plan back") {
  ParallelPlan plan = whole_plan();
  plan.entries.push_back({"x", PrepareInput({.input = Shard(-1)})});
  plan.entries.push_back({"y", PrepareOutput({.output = Replicate()})});
  const std::string path = plan_path("plan.json");
  plan.save(path);
  CHECK((ParallelPlan::load(path).entries == plan.entries));
  CHECK_THAT(plan.to_string(), Catch::Contains("layers.*.wo: RowwiseParallel(output S(1))\n") &&
                                   Catch::Contains("head: ParameterStyle(weight S(1), output R)\n"));
}

TEST_CASE("parallel plan: a file that is no plan is an error that names the file") {
  const std::string path = plan_path("no_plan.json");
  const auto text_of = [&](const std::string& contents) {
    std::ofstream(path) << contents;
    return error_text([&] { ParallelPlan::load(path); });
  };
  CHECK_THAT(error_text([] { ParallelPlan::load("/nowhere/plan.json"); }), Catch::Contains("cannot read '/nowhere/"));
  CHECK_THAT(error_text([] { ParallelPlan().save("/nowhere/plan.json"); }), Catch::Contains("cannot write '/nowhere/"));
  CHECK_THAT(text_of("{"), Catch::Contains("'" + path + "' is no parallel plan"));
  const std::string head = R"({"format": "dtensor parallel plan", "version": 1, "entries": [)";
  CHECK_THAT(text_of(head + R"({"pattern": "a", "style": "Diagonal"}]})"),
             Catch::Contains("no style is called 'Diagonal'; there are ColwiseParallel"));
  CHECK_THAT(text_of(head + R"({"pattern": "a", "style": "ColwiseParallel", "inputs": "R"}]})"),
             Catch::Contains("the unknown key 'inputs'"));
  CHECK_THAT(text_of(head + R"json({"pattern": "a", "style": "ColwiseParallel", "input": "RS(0)"}]})json"),
             Catch::Contains("is not one placement"));
  CHECK_THAT(text_of(head + R"json({"pattern": "a", "style": "PrepareInput", "output": "R"}]})json"),
             Catch::Contains(path) && Catch::Contains("the entry of 'a': PrepareInput has no layout of the input"));
  CHECK_THAT(text_of(head + R"json({"pattern": "a", "style": "RowwiseParallel", "parameters": {"w": "R"}}]})json"),
             Catch::Contains("the entry of 'a': RowwiseParallel takes no placements of parameters"));
  CHECK_THAT(
      text_of(head + R"json({"pattern": "a", "style": "ParameterStyle", "parameters": {"w": "R", "w": "R"}}]})json"),
      Catch::Contains(path) && Catch::Contains("has the key 'w' twice"));
  CHECK_THAT(text_of(R"({"format": "dtensor layout plan", "version": 1})"), Catch::Contains("no parallel plan"));
}

TEST_CASE("parallel plan: the plan of a module gives a new module the same layouts and styles") {
  const std::string path = plan_path("module_plan.json");
  Model model;
  parallelize_module(*model, grid_mesh(), whole_plan(), {.mesh_dim = "tp"});
  plan_of_module(*model, grid_mesh(), {.mesh_dim = "tp"}).save(path);
  Model again;
  parallelize_module(*again, grid_mesh(), ParallelPlan::load(path), {.mesh_dim = "tp"});
  CHECK(layouts_of(*again) == layouts_of(*model));
  const Tensor x = distribute_tensor(torch::ones({2, 3, 4}), grid_mesh());
  CHECK(DTensor(again->forward(x)).placements() == DTensor(model->forward(x)).placements());
  CHECK_NOTHROW(check_styles_ran(*again));

  Model by_hand;
  distribute_module(*by_hand, tp_mesh(), [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
    if (name == "head") shard_parameter(m, "weight", mesh, {Shard(1)});
  });
  const ParallelPlan plan = plan_of_module(*by_hand, tp_mesh());
  CHECK(plan.to_string() == "head: ParameterStyle(weight S(1))\n");
  Model third;
  parallelize_module(*third, tp_mesh(), plan);
  CHECK(layouts_of(*third) == layouts_of(*by_hand));
  CHECK_THAT(error_text([&] { plan_of_module(*by_hand, grid_mesh(), {.mesh_dim = "tp"}); }),
             Catch::Contains("not on mesh(dp=2, tp=2)"));
}

TEST_CASE("parallel plan: styles that no operator followed are reported, once per step") {
  Model model;
  parallelize_module(*model, tp_mesh(), whole_plan());
  const Tensor x = distribute_tensor(torch::ones({2, 3, 4}), tp_mesh());
  model->forward(x);
  CHECK_NOTHROW(check_styles_ran(*model));
  model->layers->forward(x);
  const std::string text = error_text([&] { check_styles_ran(*model); });
  CHECK_THAT(text, Catch::Contains("'head', ParameterStyle(weight S(1), output R)") && !Catch::Contains("layers.0"));
  model->head(x);
  CHECK_THAT(error_text([&] { check_styles_ran(*model); }),
             Catch::Contains("'layers.0.wq', ColwiseParallel; ") && !Catch::Contains("'head'"));
}

TEST_CASE("parallel plan: a module that changed its dtype still follows its style") {
  nn::Linear linear(4, 6);
  parallelize_module(*linear, tp_mesh(), {{"", ColwiseParallel()}});
  linear->to(torch::kDouble);
  const Tensor x = distribute_tensor(torch::ones({2, 4}, torch::kDouble), tp_mesh(), {Shard(0)});
  CHECK(DTensor(linear(x)).placements() == Placements{Shard(1)});
  CHECK_NOTHROW(check_styles_ran(*linear));
}

TEST_CASE("parallel plan: explain_module lists layouts and who decided them") {
  Model model;
  parallelize_module(*model, tp_mesh(), {{"layers.0.wq", ColwiseParallel()}, {"layers.0.wo", RowwiseParallel()}});
  CHECK_THAT(explain_module(*model), Catch::Contains("never ran"));
  const Tensor x = distribute_tensor(torch::ones({2, 3, 4}), tp_mesh());
  model->forward(x);
  model->layers->forward(x);
  CHECK(explain_module(*model) ==
        "module         decided by       parameters              input         output        operators\n"
        "layers.0.norm  engine           weight R, bias R        R (engine)    R (engine)    4\n"
        "layers.0.wq    ColwiseParallel  weight S(0), bias S(0)  R (style)     S(2) (style)  2\n"
        "layers.0.wk    engine           weight R, bias R        R (engine)    R (engine)    2\n"
        "layers.0.wo    RowwiseParallel  weight S(1), bias R     S(2) (style)  R (style)     2\n"
        "layers.1.norm  engine           weight R, bias R        R (engine)    R (engine)    4\n"
        "layers.1.wq    engine           weight R, bias R        R (engine)    R (engine)    2\n"
        "layers.1.wk    engine           weight R, bias R        R (engine)    R (engine)    2\n"
        "layers.1.wo    engine           weight R, bias R        R (engine)    R (engine)    2\n"
        "head           engine           weight R                R (engine)    R (engine)    1\n");

  nn::Linear by_hand(4, 6), plain(4, 6);
  distribute_module(*by_hand, tp_mesh(), [](const std::string&, nn::Module& m, const DeviceMesh& mesh) {
    shard_parameter(m, "weight", mesh, {Shard(1)});
  });
  CHECK_THAT(explain_module(*by_hand), Catch::Contains("(itself)  user        weight S(1), bias R  -      -       -"));
  CHECK_THAT(explain_module(*plain), Catch::Contains("weight plain, bias plain"));
}

TEST_CASE("parallel plan: an input on another mesh, or without the dim of the style, is an error") {
  nn::Linear linear(4, 6);
  nn::Sequential model({{"fc", linear}});
  parallelize_module(*model, grid_mesh(), {{"fc", ColwiseParallel({.output = Shard(2)})}}, {.mesh_dim = "tp"});
  const Tensor flat = distribute_tensor(torch::ones({2, 4}), grid_mesh());
  CHECK_THAT(error_text([&] { linear(flat); }),
             Catch::Contains("[ColwiseParallel of 'fc'] the output of aten::addmm has the shape [2, 6]") &&
                 Catch::Contains("cannot be S(2)"));
  const DeviceMesh other(grid_mesh().world(), {4}, {"tp"});
  const Tensor elsewhere = distribute_tensor(torch::ones({2, 3, 4}), other);
  CHECK_THAT(error_text([&] { linear(elsewhere); }), Catch::Contains("is on another mesh than the parameters"));
  CHECK_THAT(error_text([&] { linear(torch::ones({2, 3, 4})); }), Catch::Contains("plain"));
  CHECK_NOTHROW(linear(flat.unsqueeze(0)));
}

}  // namespace dtensor
