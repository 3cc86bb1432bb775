// Chooses the sizes of a mesh, and other numbers that a training program has, for a model and a number of ranks: runs
// a step of each choice on imaginary ranks, predicts its time and memory, and says why the best one wins.
//
//   const auto make_step = [&](const LayoutChoice& choice) -> std::function<void()> {
//     const MeshScope on_mesh(choice.mesh);                       // parameters without data
//     auto model = std::make_shared<Llama>(config);
//     parallelize_module(*model, choice.mesh, styles, {.mesh_dim = "tp"});
//     for (auto& block : *model->blocks) fully_shard(*block, choice.mesh, {.mesh_dim = "dp"});
//     auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters());
//     const auto ids = zeros({batch, length}, choice.mesh, {Shard(0), Replicate()}, {.dtype = at::kLong});
//     return [=] { optimizer->zero_grad(); loss(model, ids).backward(); optimizer->step(); };
//   };
//   const auto search = search_layouts(make_step, {.ranks = 64, .mesh_dims = {"dp", "tp"}, .max_bytes = 80ll << 30});
//   std::cout << search.explain();
//
// Every choice is tried, each by itself, so the result is exact for the predictions of predict_step.h, and the same
// at every call. What the program lays out by the choice is the program's: the search depends on no model.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/layout_settings.h"
#include "dtensor/step_prediction.h"
#include "mesh/device_mesh.h"
#include "plan/cost_model.h"

namespace dtensor {

struct LayoutChoice {
  DeviceMesh mesh;        // of an abstract world of its own
  NamedNumbers settings;  // one value for each of SearchLayoutsOptions::settings

  // Error (ValueError): no such setting; the text lists them.
  int64_t setting(const std::string& name) const;
};

struct SearchLayoutsOptions {
  int64_t ranks = 0;                   // of the mesh
  std::vector<std::string> mesh_dims;  // all ways to write `ranks` as a product of their sizes are tried
  LayoutSettings settings = {};        // numbers besides
  // False: the choice is not tried, as tensor parallelism beyond a node. Unset: all are.
  std::function<bool(const LayoutChoice&)> allows = nullptr;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // of a rank; choices that need more do not fit
  std::optional<CostModel> cost_model = std::nullopt;       // unset: that of a new abstract world
  c10::DeviceType device_type = c10::DeviceType::CPU;       // of the tensors
  int64_t max_choices = 1000;
  // Called after each choice with the numbers of choices tried and in all.
  std::function<void(int64_t done, int64_t all)> progress = nullptr;
};

// What became of one choice.
struct LayoutCandidate {
  NamedNumbers mesh;      // {"dp", 16}, {"tp", 4}
  NamedNumbers settings;  // as in LayoutChoice
  StepPrediction step;    // all zeros if it failed
  bool fits = false;      // ran, within max_bytes
  std::string failure;    // the error of its step; "": it ran

  std::string name() const;  // "dp=16 tp=4 checkpoint=1"
};

struct LayoutSearch {
  // Those that fit, fastest first; those that need more memory, least first; those that failed.
  std::vector<LayoutCandidate> candidates;
  int64_t max_bytes = 0;

  // The fastest that fits. Error (ValueError): none does; the text says what the nearest lacks.
  const LayoutCandidate& best() const;
  // A table of the fastest `most`, what the next three take more time for than the best, and what did not fit or
  // failed.
  std::string explain(int64_t most = 10) const;
  // {"max_bytes": n, "candidates": [{"mesh": {...}, "settings": {...}, "fits": true, "seconds": s, ...}]}
  std::string to_json() const;
};

// Makes a step for each choice, runs it twice, since the first run makes gradients and states of optimizers, and
// predicts the second. A choice whose `make_step` or step throws has failed, and the search goes on.
// Errors (ValueError): an empty function; ranks < 1; no mesh dims; a setting without values; a name twice; no choice is
// allowed, or more than max_choices are; a cost model that set_cost_model() refuses. Runs on the calling thread.
LayoutSearch search_layouts(const std::function<std::function<void()>(const LayoutChoice&)>& make_step,
                            const SearchLayoutsOptions& options);

}  // namespace dtensor
