// Models of examples/models by parallel styles: they learn what they learn on one device, and communicate no more than
// by their sharding functions. In one process, and in four (//tests/processes).
#include <torch/nn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "examples/models/dlrm.h"
#include "examples/models/experts.h"
#include "examples/models/layouts.h"
#include "examples/models/llama.h"
#include "examples/models/transformer.h"
#include "examples/models/vision.h"
#include "tests/examples/against_one_device.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using examples::over;
using testing::four_ranks;

DeviceMesh one_dim(const std::string& name) { return DeviceMesh(four_ranks(), {4}, {name}); }
DeviceMesh two_dims(const std::string& second) { return DeviceMesh(four_ranks(), {2, 2}, {"dp", second}); }

template <class Model>
struct StyledModel {
  std::function<Model()> make;
  std::function<torch::Tensor(Model&, const Tensors&)> loss_of;
  std::vector<Input> inputs;
};

template <class Model>
Model made(const StyledModel<Model>& of) {
  torch::manual_seed(3);
  Model model = of.make();
  model->to(torch::kDouble);
  return model;
}

// One step on the mesh.
template <class Model>
struct Step {
  Step(const StyledModel<Model>& of, Model on_mesh, const DeviceMesh& mesh) : model(std::move(on_mesh)) {
    Tensors inputs;
    for (const Input& in : of.inputs) inputs.push_back(distribute_tensor(in.value, mesh, in.placements));
    const MeshScope scope(mesh);
    const CommDebugMode comm;
    const auto value = of.loss_of(model, inputs);
    value.backward();
    calls = comm.total(), bytes = comm.bytes(), report = comm.to_string();
    loss = value.template item<double>();
  }

  Model model;
  double loss = 0;
  int64_t calls = 0, bytes = 0;
  std::string report;
};

template <class Model>
void check_values(const StyledModel<Model>& of, const Step<Model>& step) {
  Model plain = made(of);
  Tensors inputs;
  for (const Input& in : of.inputs) inputs.push_back(in.value);
  const auto expected = of.loss_of(plain, inputs);
  expected.backward();
  CHECK(step.loss == Approx(expected.template item<double>()).epsilon(1e-11));
  const auto parameters = plain->named_parameters();
  for (const auto& p : step.model->named_parameters()) {
    INFO(p.key());
    const torch::Tensor &e = parameters[p.key()].grad(), &g = p.value().grad();
    REQUIRE(e.defined() == g.defined());
    if (!e.defined()) continue;
    CHECK(torch::allclose(full_tensor(g), e, 1e-9, 1e-11));
    CHECK(DTensor(g).placements() == DTensor(p.value()).placements());
  }
}

template <class Model>
Step<Model> styled_step(const StyledModel<Model>& of, const ParallelPlan& styles, const DeviceMesh& mesh,
                        const std::string& mesh_dim) {
  Model model = made(of);
  parallelize_module(*model, mesh, styles, {.mesh_dim = mesh_dim});
  Step<Model> step(of, model, mesh);
  check_styles_ran(*model);
  return step;
}

// `shard`: lays the parameters out as the styles do.
template <class Model>
void check_styles(const StyledModel<Model>& of, const ParallelPlan& styles, const PartitionFn& shard,
                  const DeviceMesh& mesh, const std::string& mesh_dim) {
  CAPTURE(mesh.to_string());
  const Step<Model> by_styles = styled_step(of, styles, mesh, mesh_dim);
  check_values(of, by_styles);
  Model sharded = made(of);
  distribute_module(*sharded, mesh, shard);
  const Step<Model> by_function(of, sharded, mesh);
  INFO("by styles: " << by_styles.report << "by "
                     << "distribute_module: " << by_function.report);
  CHECK(by_styles.calls <= by_function.calls);
  CHECK(by_styles.bytes <= by_function.bytes);
  const auto parameters = by_function.model->named_parameters();
  for (const auto& p : by_styles.model->named_parameters()) {
    INFO(p.key());
    CHECK(DTensor(p.value()).placements() == DTensor(parameters[p.key()]).placements());
  }
}

torch::Tensor of_classes(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets.view({-1}));
}

StyledModel<examples::Llama> llama(const DeviceMesh& mesh, int64_t length = 6) {
  examples::LlamaConfig c;
  c.vocab = 46, c.width = 16, c.heads = 4, c.kv_heads = 4, c.hidden = 18;  // 46 and 18 do not divide by four
  const Placements rows = over(mesh, "dp", Shard(0));
  torch::manual_seed(5);
  return {[=] { return examples::Llama(c); },
          [](examples::Llama& model, const Tensors& in) { return of_classes(model(in[0]), in[1]); },
          {{torch::randint(c.vocab, {4, length}), rows}, {torch::randint(c.vocab, {4, length}), rows}}};
}

TEST_CASE("Llama by styles trains as on one device, and communicates no more than by its sharding function") {
  for (const DeviceMesh& mesh : {one_dim("tp"), two_dims("tp")}) {
    check_styles(llama(mesh), examples::llama_styles(), examples::shard_llama, mesh, "tp");
  }
}

TEST_CASE("Llama with sequences sharded trains as on one device, for the same bytes and the gradients of norms") {
  for (const DeviceMesh& mesh : {one_dim("tp"), two_dims("tp")}) {
    CAPTURE(mesh.to_string());
    const auto uneven = llama(mesh);  // 6 positions over 4 ranks
    check_values(uneven, styled_step(uneven, examples::llama_styles(/*sequence=*/true), mesh, "tp"));
    const auto of = llama(mesh, /*length=*/8);
    const auto by_sequence = styled_step(of, examples::llama_styles(/*sequence=*/true), mesh, "tp");
    check_values(of, by_sequence);
    const auto whole_sequences = styled_step(of, examples::llama_styles(), mesh, "tp");
    int64_t norms = 0;  // bytes
    for (const auto& p : by_sequence.model->named_parameters()) {
      if (p.key().find("norm") != std::string::npos) norms += DTensor(p.value()).spec().meta().bytes();
    }
    INFO(by_sequence.report << whole_sequences.report);
    CHECK(by_sequence.bytes <= whole_sequences.bytes + 2 * norms);
  }
}

TEST_CASE("Llama by styles over tp and fully sharded over dp trains as on one device") {
  const DeviceMesh mesh = two_dims("tp");
  const auto of = llama(mesh);
  examples::Llama model = made(of);
  parallelize_module(*model, mesh, examples::llama_styles(/*sequence=*/true), {.mesh_dim = "tp"});
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, {.mesh_dim = "dp"});
  fully_shard(*model, mesh, {.mesh_dim = "dp"});
  check_values(of, Step<examples::Llama>(of, model, mesh));
  check_styles_ran(*model);
}

TEST_CASE("a vision transformer by styles trains as on one device, and communicates no more") {
  examples::ViTConfig c;
  c.image = 8, c.patch = 4, c.width = 12;
  for (const DeviceMesh& mesh : {one_dim("tp"), two_dims("tp")}) {
    const Placements rows = over(mesh, "dp", Shard(0));
    const StyledModel<examples::ViT> of = {
        [=] { return examples::ViT(c); },
        [](examples::ViT& model, const Tensors& in) { return of_classes(model(in[0]), in[1]); },
        {{doubles({4, 3, 8, 8}), rows}, {torch::randint(c.classes, {4}), rows}}};
    check_styles(of, examples::vit_styles(), examples::shard_vit, mesh, "tp");
  }
}

TEST_CASE("experts by styles train as on one device, and communicate no more") {
  examples::ExpertsConfig c;
  c.width = 6, c.hidden = 10, c.experts = 6;
  for (const DeviceMesh& mesh : {one_dim("ep"), two_dims("ep")}) {
    const StyledModel<examples::Experts> of = {
        [=] { return examples::Experts(c); },
        [](examples::Experts& model, const Tensors& in) { return model(in[0]).square().mean(); },
        {{doubles({4, 9, c.width}), Placements(static_cast<size_t>(mesh.ndim()), Shard(0))}}};
    check_styles(of, examples::experts_styles(), examples::shard_experts, mesh, "ep");
  }
}

TEST_CASE("an encoder and a decoder by styles train as on one device, and communicate no more") {
  for (const DeviceMesh& mesh : {one_dim("tp"), two_dims("tp")}) {
    const Placements of_batch = over(mesh, "dp", Shard(1));
    const StyledModel<torch::nn::Transformer> of = {
        [] {
          return torch::nn::Transformer(torch::nn::TransformerOptions(8, 4, 1, 1).dim_feedforward(10).dropout(0.0));
        },
        [](torch::nn::Transformer& model, const Tensors& in) { return model(in[0], in[1]).square().mean(); },
        {{doubles({5, 4, 8}), of_batch}, {doubles({3, 4, 8}), of_batch}}};
    check_styles(of, examples::transformer_styles(), examples::shard_transformer, mesh, "tp");
  }
}

TEST_CASE("a recommendation model by styles trains as on one device, and communicates no more") {
  examples::DLRMConfig c;
  c.tables = 3, c.rows = 31, c.width = 6, c.dense = 4, c.hidden = 5;
  const DeviceMesh mesh = one_dim("all");
  const StyledModel<examples::DLRM> of = {[=] { return examples::DLRM(c); },
                                          [](examples::DLRM& model, const Tensors& in) {
                                            return torch::binary_cross_entropy_with_logits(model(in[0], in[1]), in[2]);
                                          },
                                          {{doubles({8, c.dense}), {Shard(0)}},
                                           {torch::randint(c.rows, {8, c.tables, 3}), {Shard(0)}},
                                           {torch::rand({8}, torch::kDouble).round(), {Shard(0)}}}};
  check_styles(of, examples::styles_of_tables_by_rows(), examples::shard_tables_by_rows, mesh, "all");
  check_styles(of, examples::styles_of_tables_by_columns(), examples::shard_tables_by_columns, mesh, "all");
}

}  // namespace
}  // namespace dtensor
