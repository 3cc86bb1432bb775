// Reductions of gradients that go on while backward does: which events come in which order, what reads in between see,
// and what a failure leaves. Also runs with a process per rank (//tests/processes).
#include <torch/autograd.h>
#include <torch/nn.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/flight_records.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using testing::four_ranks;
using testing::is_job;
using torch::Tensor;
using Lines = std::vector<std::string>;

constexpr int64_t kUnits = 5, kLayers = 4;

// Weights "0.weight", "2.weight", "4.weight", "6.weight".
torch::nn::Sequential make_tanh_layers() {
  torch::manual_seed(3);
  torch::nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kUnits, kUnits).bias(false)));
    model->push_back(torch::nn::Tanh());
  }
  model->to(torch::kDouble);
  return model;
}

Tensor tanh_batch() { return torch::arange(10 * kUnits, torch::kDouble).view({10, kUnits}).sin(); }

struct TanhLayers {
  DeviceMesh mesh{four_ranks(), {4}, {"dp"}};
  torch::nn::Sequential model = make_tanh_layers();
  std::vector<Tensor> weights;
  Tensor x;

  // A bucket per weight, which is reduced when its gradient has arrived.
  explicit TanhLayers(bool overlap = true) {
    distribute_module(*model, mesh);
    weights = model->parameters();
    x = distribute_tensor(tanh_batch(), mesh, {Shard(0)});
    set_gradient_buckets(four_ranks(), {.max_bytes = 0, .overlap = overlap, .order = weights});
  }
  ~TanhLayers() { set_gradient_buckets(four_ranks(), {}); }
  Tensor loss() { return model->forward(x).square().sum(); }
  bool is_arriving(size_t i) const {
    const Tensor& g = weights[i].grad();
    return g.defined() && DTensor(g).explain().find("arriving") != std::string::npos;
  }
  void check_gradients(double times = 1) {
    torch::nn::Sequential plain = make_tanh_layers();
    plain->forward(tanh_batch()).square().sum().backward();
    for (size_t i = 0; i < weights.size(); ++i) {
      INFO("weight " << i);
      REQUIRE(weights[i].grad().defined());
      CHECK(DTensor(weights[i].grad()).placements() == Placements{Replicate()});
      CHECK(torch::allclose(full_tensor(weights[i].grad()), plain->parameters()[i].grad() * times, 1e-10, 1e-12));
    }
  }
};

// What happens in backward, in its order: "reduce 6.weight" when its collective begins, and "compute" when a matrix
// product has run, with the weights whose gradients are on their way then.
class BackwardRecord : public internal::CommListener {
 public:
  explicit BackwardRecord(const TanhLayers& chain)
      : chain_(chain), guard_([this](internal::Scope& s) { s.listeners.push_back(this); }) {}
  void on_comm(const CommEvent& event, bool before) override {
    if (!before || event.cause.op != "gradient") return;
    TORCH_CHECK(event.cause.argument != fails, "rank 2 does not answer");
    lines.push_back("reduce " + event.cause.argument);
  }
  void on_work(const internal::WorkEvent& event) override {
    if (event.flops == 0) return;
    lines.emplace_back("compute");
    for (size_t i = 0; i < kLayers; ++i) {
      if (chain_.is_arriving(i)) lines.back() += " with " + std::to_string(2 * i);
    }
  }

  std::string fails;  // the argument whose collective fails
  Lines lines;

 private:
  const TanhLayers& chain_;
  internal::ScopeGuard guard_;
};

std::string if_job(const std::string& text) { return is_job() ? text : ""; }

}  // namespace

TEST_CASE("gradient overlap: reductions begin before the operators of earlier layers, and are waited for after them") {
  TanhLayers chain;
  const Tensor loss = chain.loss();
  const BackwardRecord record(chain);
  loss.backward();
  CHECK(record.lines == Lines{"compute", "compute", "reduce 6.weight",                                          //
                              "compute" + if_job(" with 6"), "compute" + if_job(" with 6"), "reduce 4.weight",  //
                              "compute" + if_job(" with 4 with 6"), "compute" + if_job(" with 4 with 6"),       //
                              "reduce 2.weight", "compute" + if_job(" with 2 with 4 with 6"), "reduce 0.weight"});
  for (size_t i = 0; i < kLayers; ++i) CHECK_FALSE(chain.is_arriving(i));
  chain.check_gradients();
}

TEST_CASE("gradient overlap: without it the same collectives begin at the same places, and none is under way") {
  TanhLayers chain(/*overlap=*/false);
  const Tensor loss = chain.loss();
  const BackwardRecord record(chain);
  loss.backward();
  CHECK(record.lines == Lines{"compute", "compute", "reduce 6.weight", "compute", "compute", "reduce 4.weight",
                              "compute", "compute", "reduce 2.weight", "compute", "reduce 0.weight"});
  chain.check_gradients();
}

TEST_CASE("gradient overlap: buckets that are filled as gradients arrive overlap, too") {
  TanhLayers chain;
  set_gradient_buckets(four_ranks(), {.max_bytes = 2 * kUnits * kUnits * 8, .overlap = true});
  const Tensor loss = chain.loss();
  const BackwardRecord record(chain);
  loss.backward();
  const std::string later = if_job(" with 4 with 6");
  CHECK(record.lines == Lines{"compute", "compute", "compute", "compute", "compute", "compute",
                              "reduce 6.weight and 1 more", "compute" + later, "reduce 2.weight and 1 more"});
  chain.check_gradients();
}

TEST_CASE("gradient overlap: the flight recorder shows a reduction under way until backward waits for it") {
  TanhLayers chain;
  const auto open_collectives = [] {
    int64_t open = 0;
    for (const auto& r : testing::records_after(-1)) open += r.at("state") == "started" && r.at("retired") == false;
    return open;
  };
  int64_t during = -1;
  const Tensor y = chain.model[0]->as<torch::nn::Linear>()->forward(chain.x);
  y.register_hook([&](const Tensor& g) {  // three of four have begun
    during = open_collectives();
    return g;
  });
  Tensor z = y;
  for (size_t i = 1; i < chain.model->size(); ++i) {
    z = i % 2 == 1 ? z.tanh() : chain.model[i]->as<torch::nn::Linear>()->forward(z);
  }
  z.square().sum().backward();
  CHECK(during == (is_job() ? 3 : 0));
  CHECK(open_collectives() == 0);
  chain.check_gradients();
}

TEST_CASE("gradient overlap: gradients of several mesh dims, and those of fully_shard, are on their way together") {
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "tp"});
  const Placements both{Replicate(), Replicate()};
  Tensor a = ones({3, 3}, mesh, both).requires_grad_(), b = ones({3, 3}, mesh, both).requires_grad_();
  torch::nn::Linear sharded(3, 3);
  fully_shard(*sharded, mesh, {.mesh_dim = "dp"});
  set_gradient_buckets(four_ranks(), {.overlap = true, .order = {a, b}});
  const Tensor x = ones({6, 3}, mesh, {Shard(0), Replicate()}), y = ones({8, 3}, mesh, {Shard(0), Shard(0)});
  Tensor first = ones({2}, mesh, both).requires_grad_();
  Lines seen;
  first.register_hook([&](const Tensor& g) {  // the last one
    for (const Tensor& w : {a, b, sharded->weight}) {
      seen.push_back(DTensor(w.grad()).explain().find("arriving") != std::string::npos ? "arriving" : "there");
    }
    return g;
  });
  const Tensor factor = first.sum();
  CommDebugMode comm;
  (sharded->forward(x.mul(factor)).sum() + x.mul(factor).mm(a).sum() + y.mul(factor).mm(b).sum()).backward();
  CHECK(seen == Lines(3, is_job() ? "arriving" : "there"));
  CHECK(full_tensor(a.grad()).eq(2 * 6).all().item<bool>());
  CHECK(full_tensor(b.grad()).eq(2 * 8).all().item<bool>());
  CHECK(full_tensor(sharded->weight.grad()).eq(2 * 6).all().item<bool>());
  set_gradient_buckets(four_ranks(), {});
}

TEST_CASE("gradient overlap: a hook that reads another .grad waits for it, and changes no collective") {
  for (const bool cast : {false, true}) {
    CAPTURE(cast);
    TanhLayers chain;
    if (cast)
      set_gradient_buckets(four_ranks(),
                           {.max_bytes = 0, .reduce_dtype = torch::kFloat, .overlap = true, .order = chain.weights});
    Tensor read;
    chain.weights[0].register_hook([&](const Tensor& g) {
      if (!is_job() || four_ranks().owned_ranks()[0] == 1)
        read = DTensor(chain.weights[3].grad()).local(0).clone();  // one rank alone
      return g;
    });
    CommDebugMode comm;
    chain.loss().backward();
    CHECK(comm.total() == kLayers);
    if (read.defined()) CHECK(torch::equal(read, full_tensor(chain.weights[3].grad())));
    if (!cast) chain.check_gradients();
  }
}

TEST_CASE("gradient overlap: gradients added to existing ones keep their memory and identity") {
  TanhLayers chain;
  chain.loss().backward();
  std::vector<Tensor> grads, handles, during;
  for (const Tensor& w : chain.weights) {
    grads.push_back(w.grad());
    handles.push_back(w.grad().detach());
  }
  chain.weights[0].register_hook([&](const Tensor& g) {
    during.push_back(full_tensor(chain.weights[3].grad()));  // with the previous one in it
    return g;
  });
  chain.loss().backward();
  chain.check_gradients(2);
  for (size_t i = 0; i < kLayers; ++i) {
    CHECK(chain.weights[i].grad().is_same(grads[i]));
    CHECK(torch::equal(full_tensor(handles[i]), full_tensor(grads[i])));
  }
  CHECK(torch::equal(during.at(0), full_tensor(grads[3])));
  {
    DelayGradientReduction delay;
    chain.loss().backward();
  }
  chain.loss().backward();
  chain.check_gradients(4);
}

TEST_CASE("gradient overlap: a gradient that a hook replaces while its reduction goes on stays as the hook says") {
  TanhLayers chain;
  chain.weights[0].register_hook([&](const Tensor& g) {
    chain.weights[3].mutable_grad() = Tensor();
    chain.weights[2].mutable_grad() = torch::ones_like(chain.weights[2]);
    return g;
  });
  chain.loss().backward();
  CHECK_FALSE(chain.weights[3].grad().defined());
  CHECK(full_tensor(chain.weights[2].grad()).eq(1).all().item<bool>());
  CHECK(DTensor(chain.weights[1].grad()).placements() == Placements{Replicate()});
}

TEST_CASE("gradient overlap: a backward within a backward adds to gradients whose reduction goes on") {
  TanhLayers chain;
  const auto inner = [&] {
    const at::AutoGradMode grad(true);
    chain.loss().backward();
  };
  const Tensor loss = chain.loss();
  bool once = false;
  chain.weights[0].register_hook([&](const Tensor& g) {
    if (!std::exchange(once, true)) inner();
    return g;
  });
  loss.backward();
  chain.check_gradients(2);
}

TEST_CASE("gradient overlap: a failure names the parameters, and leaves every gradient as before the backward") {
  using Catch::Contains;
  for (const bool accumulates : {false, true}) {
    for (const bool overlap : {true, false}) {
      CAPTURE(accumulates, overlap);
      TanhLayers chain(overlap);
      if (accumulates) chain.loss().backward();
      const Tensor loss = chain.loss();
      {
        BackwardRecord record(chain);
        record.fails = "2.weight";
        const std::string text = testing::error_text([&] { loss.backward(); });
        CHECK_THAT(text, Contains("rank 2 does not answer") && Contains("while reducing the gradients of '2.weight'") &&
                             Contains("for gradient"));
        CHECK((text.find(", on rank ") != std::string::npos) == is_job());
      }
      for (size_t i = 0; i < kLayers; ++i) {
        INFO("weight " << i);
        const Tensor& g = chain.weights[i].grad();
        const bool was_reduced = !overlap && i > 1;  // before the failure
        REQUIRE(g.defined() == (accumulates || was_reduced));
        if (g.defined()) CHECK(DTensor(g).placements() == Placements{Replicate()});
      }
      if (accumulates && overlap) chain.check_gradients();
      chain.model->zero_grad();
      chain.loss().backward();
      chain.check_gradients();
    }
  }
}

TEST_CASE("gradient overlap: a hook that fails leaves every gradient as before, and later steps are right") {
  TanhLayers chain;
  chain.loss().backward();
  Tensor y = chain.model[0]->as<torch::nn::Linear>()->forward(chain.x);
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
  for (size_t i = 1; i < chain.model->size(); ++i) {
    y = i % 2 == 1 ? y.tanh() : chain.model[i]->as<torch::nn::Linear>()->forward(y);
  }
  CHECK_THROWS_WITH(y.square().sum().backward(), Catch::Contains("no further"));
  chain.check_gradients();
  chain.loss().backward();
  chain.check_gradients(2);
}

TEST_CASE("gradient overlap: no more memory than without it when backward has returned") {
  const MemoryMeter& memory = four_ranks().memory();
  std::vector<int64_t> held;
  for (const bool overlap : {false, true}) {
    TanhLayers chain(overlap);
    const int64_t before = memory.live_bytes();
    for (int twice = 0; twice < 2; ++twice) chain.loss().backward();
    held.push_back(memory.live_bytes() - before);
  }
  CHECK(held[0] == held[1]);
  CHECK(held[0] == kLayers * kUnits * kUnits * 8);
}

}  // namespace dtensor
