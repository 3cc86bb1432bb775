// The recipes of docs/recipes.md with models under every kind of parallelism: three steps change the parameters as they
// do on one device, in float64.
#include <ATen/autocast_mode.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "examples/models/layouts.h"
#include "examples/models/llama.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

using examples::Llama;
using examples::over;

constexpr int64_t kVocabulary = 46, kWidth = 16, kHidden = 18;  // 46 and 18 do not divide by four
constexpr int kSteps = 3;

// ------------------------------------------------------------ models

Llama make_llama() {
  examples::LlamaConfig c;
  c.vocab = kVocabulary, c.width = kWidth, c.heads = 4, c.kv_heads = 4, c.hidden = kHidden;
  return Llama(c);
}

// A frozen layer and the product of two narrow matrices.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl(int64_t from, int64_t to)
      : base(register_module("base", torch::nn::Linear(from, to))),
        a(register_parameter("a", torch::randn({2, from}))),
        b(register_parameter("b", torch::randn({to, 2}))) {
    for (auto& p : base->parameters()) p.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return base(x) + torch::linear(torch::linear(x, a), b); }
  torch::nn::Linear base;
  torch::Tensor a, b;
};
TORCH_MODULE(Adapted);

// Scores of tokens by the rows of their own table; the layers between are adapted.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : table(register_module("table", torch::nn::Embedding(kVocabulary, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList(Adapted(kWidth, kHidden), Adapted(kHidden, kWidth)))) {}
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto hidden = torch::tanh(blocks[0]->as<Adapted>()->forward(table(ids)));
    return torch::linear(blocks[1]->as<Adapted>()->forward(hidden), table->weight);
  }
  torch::nn::Embedding table;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Tied);

ParallelPlan tied_styles() {
  return {{"table", RowwiseParallel()},
          {"blocks.0.base", ColwiseParallel()},
          {"blocks.0", ParameterStyle({{"b", Shard(0)}})},
          {"blocks.1.base", RowwiseParallel()},
          {"blocks.1", ParameterStyle({{"a", Shard(1)}})}};
}

// ------------------------------------------------------------ kinds of parallelism

void shard_groups(torch::nn::Module& model, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& child : model.children()) {
    if (!child->as<torch::nn::ModuleList>()) continue;
    for (const auto& block : child->children()) fully_shard(*block, mesh, options);
  }
  fully_shard(model, mesh, options);
}

struct Kind {
  std::string name;
  DeviceMesh mesh;
  std::function<void(torch::nn::Module&, const DeviceMesh&)> distribute;
};

std::vector<Kind> kinds(const std::vector<ParallelPlan>& plans) {
  const DeviceMesh line(World::local(4), {4}, {"dp"}), grid(World::local(4), {2, 2}, {"dp", "tp"});
  std::vector<Kind> all = {
      {"data parallel", line, [](auto& model, const auto& mesh) { distribute_module(model, mesh); }},
      {"sharded by a function", line,
       [](auto& model, const auto& mesh) { distribute_module(model, mesh, examples::shard_fully); }},
      {"fully sharded", line, [](auto& model, const auto& mesh) { shard_groups(model, mesh, {.mesh_dim = "dp"}); }},
      {"fully sharded, gathered once and ahead", line, [](auto& model, const auto& mesh) {
         shard_groups(model, mesh, {.mesh_dim = "dp", .reshard_after_forward = false, .prefetch = true});
       }}};
  for (const ParallelPlan& plan : plans) {
    const auto styles = [plan](torch::nn::Module& model, const DeviceMesh& mesh) {
      parallelize_module(model, mesh, plan, {.mesh_dim = "tp"});
    };
    all.push_back({"styles:\n" + plan.to_string(), grid, styles});
    all.push_back({"2-D, with styles:\n" + plan.to_string(), grid, [styles](auto& model, const auto& mesh) {
                     styles(model, mesh);
                     shard_groups(model, mesh, {.mesh_dim = "dp"});
                   }});
  }
  return all;
}

std::vector<Kind> kinds_of_llama() { return kinds({examples::llama_styles(), examples::llama_styles(true)}); }

// ------------------------------------------------------------ recipes

// What a recipe trains with: the same values, whole or on a mesh.
struct Batches {
  std::vector<torch::Tensor> ids, targets;
};

Batches batches_on(const DeviceMesh* mesh) {
  torch::manual_seed(5);
  Batches batches;
  const auto drawn = [&] {
    const auto whole = torch::randint(kVocabulary, {4, 6});
    return mesh ? distribute_tensor(whole, *mesh, over(*mesh, "dp", Shard(0))) : whole;
  };
  for (int i = 0; i < 2 * kSteps; ++i) batches.ids.push_back(drawn()), batches.targets.push_back(drawn());
  return batches;
}

torch::Tensor mean_loss(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), targets.view({-1}));
}

torch::optim::SGD optimizer_of(const torch::nn::Module& model) {
  return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

template <class Model>
Model seeded(const std::function<Model()>& make, torch::Dtype dtype) {
  torch::manual_seed(3);
  Model model = make();
  model->to(dtype);
  return model;
}

struct Tolerance {
  torch::Dtype dtype = torch::kDouble;
  double relative = 1e-9, absolute = 1e-11;
};

// `recipe` trains a model and returns what else is compared, such as averages.
template <class Model>
void check_recipe(const std::function<Model()>& make, const std::vector<Kind>& all,
                  const std::function<std::vector<torch::Tensor>(Model&, const Batches&)>& recipe,
                  const Tolerance& tolerance = {}) {
  Model plain = seeded(make, tolerance.dtype);
  auto expected = recipe(plain, batches_on(nullptr));
  for (const auto& p : plain->named_parameters()) expected.push_back(p.value());
  for (const Kind& kind : all) {
    CAPTURE(kind.name);
    Model model = seeded(make, tolerance.dtype);
    kind.distribute(*model, kind.mesh);
    const MeshScope scope(kind.mesh);
    auto results = recipe(model, batches_on(&kind.mesh));
    for (const auto& p : model->named_parameters()) results.push_back(p.value());
    REQUIRE(results.size() == expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      CHECK(torch::allclose(whole(results[i]), expected[i], tolerance.relative, tolerance.absolute));
    }
  }
}

// Autocast of the CPU, in a block.
struct Autocast {
  explicit Autocast(torch::Dtype dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST_CASE("clipped gradients train as on one device, under every kind of parallelism") {
  check_recipe<Llama>(make_llama, kinds_of_llama(), [](Llama& model, const Batches& batches) {
    auto optimizer = optimizer_of(*model);
    std::vector<torch::Tensor> norms;
    for (int i = 0; i < kSteps; ++i) {
      optimizer.zero_grad();
      mean_loss(model(batches.ids[i]), batches.targets[i]).backward();
      norms.push_back(torch::tensor(torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1), torch::kDouble));
      optimizer.step();
    }
    return norms;
  });
}

TEST_CASE("gradients accumulated over batches train as on one device, under every kind of parallelism") {
  for (const bool delayed : {false, true}) {
    CAPTURE(delayed);
    check_recipe<Llama>(make_llama, kinds_of_llama(), [&](Llama& model, const Batches& batches) {
      auto optimizer = optimizer_of(*model);
      for (int i = 0; i < kSteps; ++i) {
        optimizer.zero_grad();
        {
          std::optional<DelayGradientReduction> delay;
          if (delayed) delay.emplace();
          for (const int j : {2 * i, 2 * i + 1}) (mean_loss(model(batches.ids[j]), batches.targets[j]) / 2).backward();
        }
        if (delayed) reduce_gradients(model->parameters());
        optimizer.step();
      }
      return std::vector<torch::Tensor>();
    });
  }
}

TEST_CASE("a scaled loss, with a step that is skipped, trains as on one device, under every kind of parallelism") {
  check_recipe<Llama>(make_llama, kinds_of_llama(), [](Llama& model, const Batches& batches) {
    auto optimizer = optimizer_of(*model);
    GradScaler scaler({.init_scale = 1024});
    for (int i = 0; i < kSteps; ++i) {
      optimizer.zero_grad();
      auto loss = mean_loss(model(batches.ids[i]), batches.targets[i]);
      if (i == 1) loss = loss * std::numeric_limits<double>::infinity();
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      if (i != 1) torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
      CHECK(scaler.step(optimizer) == (i != 1));
      scaler.update();
    }
    return std::vector<torch::Tensor>{torch::tensor(scaler.get_scale())};
  });
}

TEST_CASE("checkpointed blocks train as on one device, under every kind of parallelism") {
  check_recipe<Llama>(make_llama, kinds_of_llama(), [](Llama& model, const Batches& batches) {
    auto optimizer = optimizer_of(*model);
    for (int i = 0; i < kSteps; ++i) {
      optimizer.zero_grad();
      auto x = model->tokens(batches.ids[i]);
      for (size_t k = 0; k < model->blocks->size(); ++k) {
        x = checkpoint([&model, k](const torch::Tensor& in) { return model->run_blocks(in, k, k + 1); }, x);
      }
      mean_loss(model->head(model->norm(x)), batches.targets[i]).backward();
      optimizer.step();
    }
    return std::vector<torch::Tensor>();
  });
}

TEST_CASE("small overlapping buckets, products in chunks and a parallel loss train as on one device together") {
  check_recipe<Llama>(make_llama, kinds_of_llama(), [](Llama& model, const Batches& batches) {
    const OverlapCommunication chunks({.chunks = 2});
    const LossParallel scores_stay;
    auto optimizer = optimizer_of(*model);
    const auto parameters = model->parameters();
    if (is_dtensor(parameters[0])) {
      std::vector<torch::Tensor> order(parameters.rbegin(), parameters.rend());
      set_gradient_buckets(DTensor(parameters[0]).mesh().world(),
                           {.max_bytes = 4096, .reduce_dtype = torch::kDouble, .overlap = true, .order = order});
    }
    for (int i = 0; i < kSteps; ++i) {
      optimizer.zero_grad();
      const auto x = model->tokens(batches.ids[i]);
      const auto first = [&model](const torch::Tensor& in) { return model->run_blocks(in, 0, 1); };
      const auto y = model->run_blocks(checkpoint(first, x), 1, model->blocks->size());
      mean_loss(model->head(model->norm(y)), batches.targets[i]).backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
      optimizer.step();
    }
    return std::vector<torch::Tensor>();
  });
}

TEST_CASE("autocast to bfloat16 trains float32 parameters as on one device, under every kind of parallelism") {
  check_recipe<Llama>(make_llama, kinds_of_llama(),
                      [](Llama& model, const Batches& batches) {
                        auto optimizer = optimizer_of(*model);
                        for (int i = 0; i < kSteps; ++i) {
                          optimizer.zero_grad();
                          torch::Tensor scores;
                          {
                            const Autocast autocast(torch::kBFloat16);
                            scores = model(batches.ids[i]);
                          }
                          CHECK(scores.scalar_type() == torch::kBFloat16);
                          mean_loss(scores.to(torch::kFloat), batches.targets[i]).backward();
                          optimizer.step();
                        }
                        std::vector<torch::Tensor> updates;  // larger than the rounding of bfloat16
                        for (const auto& p : model->parameters()) {
                          CHECK(p.grad().scalar_type() == torch::kFloat);
                          const auto& state = *optimizer.state().at(p.unsafeGetTensorImpl());
                          updates.push_back(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
                        }
                        return updates;
                      },
                      {torch::kFloat, 0.02, 0.002});
}

TEST_CASE(
    "an average of the parameters is that of one device, under every kind of parallelism, without communication") {
  check_recipe<Llama>(make_llama, kinds_of_llama(), [](Llama& model, const Batches& batches) {
    auto optimizer = optimizer_of(*model);
    const auto parameters = model->parameters();
    std::vector<torch::Tensor> average;
    for (const auto& p : parameters) average.push_back(p.detach().clone());
    for (int i = 0; i < kSteps; ++i) {
      optimizer.zero_grad();
      mean_loss(model(batches.ids[i]), batches.targets[i]).backward();
      optimizer.step();
      const CommDebugMode comm;
      const torch::NoGradGuard no_grad;
      for (size_t k = 0; k < parameters.size(); ++k) average[k].lerp_(parameters[k], 0.1);
      CHECK(comm.total() == 0);
    }
    return average;
  });
}

TEST_CASE("low-rank adapters and tied weights train as on one device, under every kind of parallelism") {
  check_recipe<Tied>([] { return Tied(); }, kinds({tied_styles()}),
                     [](Tied& model, const Batches& batches) {
                       std::vector<torch::Tensor> trained;
                       for (const auto& p : model->parameters()) {
                         if (p.requires_grad()) trained.push_back(p);
                       }
                       torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.1).momentum(0.9));
                       for (int i = 0; i < kSteps; ++i) {
                         optimizer.zero_grad();
                         mean_loss(model(batches.ids[i]), batches.targets[i]).backward();
                         optimizer.step();
                       }
                       for (const auto& block : *model->blocks) {
                         for (const auto& p : block->as<Adapted>()->base->parameters()) CHECK(!p.grad().defined());
                       }
                       return std::vector<torch::Tensor>();
                     });
}

}  // namespace
}  // namespace dtensor
