// What a backward makes of a rank that goes wrong while gradients are reduced, where every rank is a thread.
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "dtensor/tensor/representation.h"
#include "tests/processes/thread_job.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

using Catch::Contains;

namespace dtensor::testing {
namespace {

using torch::Tensor;

constexpr int64_t kWidth = 5, kLayers = 3;
constexpr int64_t kCulprit = 1;

// The state of one rank's .grad, by parameter.
enum Grad { kNone, kWhole, kHalf };

struct OfRank {
  std::string error;
  std::vector<Grad> grads;
  int64_t arriving = 0;  // reductions under way when the first layer's gradient came
};

// Layers whose weights are a bucket each, and a part of the batch on each rank.
struct Model {
  DeviceMesh mesh;
  std::vector<Tensor> weights;
  Tensor x;

  // Without a collective, so that the first one is that of the last layer.
  explicit Model(const World& world) : mesh(world, {world.size()}, {"dp"}) {
    for (int64_t i = 0; i < kLayers; ++i) {
      const Tensor eye = torch::eye(kWidth, torch::kDouble);
      weights.push_back(distribute_tensor(eye, mesh, {Replicate()}, std::nullopt).requires_grad_());
      internal::set_name(weights.back(), absl::StrCat(i, ".weight"));
    }
    x = distribute_tensor(batch(), mesh, {Shard(0)}, std::nullopt);
  }
  static Tensor batch() { return torch::arange(7 * kWidth, torch::kDouble).view({7, kWidth}).sin(); }
  Tensor loss() const {
    Tensor y = x;
    for (const Tensor& w : weights) y = y.mm(w.t());
    return y.sum();
  }
  // The layers are the identity.
  static Tensor gradient() { return batch().sum(0).expand({kWidth, kWidth}); }
};

Grad state_of(const Tensor& grad) {
  if (!grad.defined()) return kNone;
  const bool is_whole = DTensor(grad).placements() == Placements{Replicate()} &&
                        torch::allclose(DTensor(grad).local(0), Model::gradient());
  return is_whole ? kWhole : kHalf;
}

// One backward of a job with a fault at its `call`-th collective.
std::vector<OfRank> backward_with(Fault fault, bool overlap, Outcome& outcome) {
  std::vector<OfRank> of_rank(kRanks);
  outcome = run_job(kCulprit, fault, [&](const World& world) {
    OfRank& own = of_rank[world.owned_ranks()[0]];
    Model model(world);
    set_gradient_buckets(world, {.max_bytes = 0, .overlap = overlap, .order = model.weights});
    model.weights[0].register_hook([&](const Tensor& g) {
      for (const Tensor& w : model.weights) {
        own.arriving += w.grad().defined() && DTensor(w.grad()).explain().find("arriving") != std::string::npos;
      }
      return g;
    });
    const Tensor loss = model.loss();
    try {
      loss.backward();
    } catch (...) {
      for (const Tensor& w : model.weights) own.grads.push_back(state_of(w.grad()));
      throw;
    }
    for (const Tensor& w : model.weights) own.grads.push_back(state_of(w.grad()));
    return true;
  });
  for (int64_t r = 0; r < kRanks; ++r) of_rank[r].error = outcome.errors[r];
  return of_rank;
}

}  // namespace

TEST_CASE("gradient faults: without one, and with a late rank, all gradients arrive") {
  for (const Fault& fault : {Fault{}, Fault{Fault::Kind::kSlow, 2, milliseconds(300)}}) {
    for (const bool overlap : {false, true}) {
      Outcome outcome;
      for (const OfRank& rank : backward_with(fault, overlap, outcome)) {
        CHECK(rank.error == "");
        CHECK(rank.grads == std::vector<Grad>(kLayers, kWhole));
        CHECK(rank.arriving == (overlap ? 2 : 0));
      }
    }
  }
}

TEST_CASE("gradient faults: an error names parameter, operation and ranks, and no gradient is half reduced") {
  for (const char* word : {"throw", "shape", "dtype", "missing"}) {
    for (const int64_t call : {int64_t{1}, kLayers}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(word, call, overlap);
        Outcome outcome;
        const auto of_rank = backward_with({*fault_kind(word), call}, overlap, outcome);
        CHECK(outcome.fired == 1);
        CHECK(outcome.took < kAtOnce);
        for (int64_t r = 0; r < kRanks; ++r) {
          CAPTURE(r);
          // It took its own part for the sum. If that was its last call, it has left before anybody could tell it.
          const bool is_deceived = word == std::string("missing") && r == kCulprit;
          if (is_deceived && (call == kLayers || !overlap)) continue;
          CHECK_THAT(of_rank[r].error, Contains("while reducing the gradients of '") && Contains(".weight'") &&
                                           Contains(absl::StrCat(", on rank ", r, ", for gradient")));
          if (word == std::string("throw") && r == kCulprit) {
            CHECK_THAT(of_rank[r].error,
                       Contains("the disk is full") &&
                           Contains(absl::StrCat("'", kLayers - call, ".weight'")));  // the last layer first
          } else {
            CHECK_THAT(of_rank[r].error, Contains("rank 1 failed: "));
          }
          // Buckets before the failure are whole without overlap; with it, all are as before.
          for (const Grad g : of_rank[r].grads) CHECK(g != kHalf);
          if (overlap) CHECK(of_rank[r].grads == std::vector<Grad>(kLayers, kNone));
        }
      }
    }
  }
}

}  // namespace dtensor::testing
