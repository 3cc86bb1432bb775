#include "dtensor/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <string>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/sequence_slots.h"
#include "mesh/device_mesh.h"

namespace dtensor {
namespace {

std::string place_of(const at::Tensor& t) { return is_dtensor(t) ? "on " + DTensor(t).mesh().to_string() : "plain"; }

void check_same_mesh(const char* name, const at::Tensor& t, const at::Tensor& other, const char* what) {
  const bool fits =
      is_dtensor(t) ? is_dtensor(other) && DTensor(t).mesh() == DTensor(other).mesh() : !is_dtensor(other);
  TORCH_CHECK_VALUE(fits, "[KVCache] ", name, " is ", place_of(t), ", but ", what, " ", place_of(other),
                    ": keys, values and steps need one mesh; inside its MeshScope SequenceSlots::step() is on it");
}

void check_new_tokens(const char* name, const at::Tensor& t, const at::Tensor& kept, const GenerationStep& step) {
  TORCH_CHECK_VALUE(t.dim() == 4 && t.size(0) == step.slots() && t.size(2) == step.columns(), "[KVCache] ", name,
                    " has the shape ", t.sizes(), ": a step of ", step.slots(), " slots and ", step.columns(),
                    " columns needs [", step.slots(), ", heads, ", step.columns(), ", size]");
  TORCH_CHECK_VALUE(!(t.requires_grad() && c10::GradMode::is_enabled()), "[KVCache] ", name,
                    " requires a gradient, but the cache is written in place: generate under a torch::NoGradGuard");
  if (!kept.defined()) {
    check_same_mesh(name, t, step.targets, "the step");
    return;
  }
  TORCH_CHECK_VALUE(is_dtensor(t) == is_dtensor(kept), "[KVCache] ", name, " is ",
                    is_dtensor(t) ? "distributed, but the first was plain" : "plain, but the first was distributed",
                    ": use one cache for each model");
  check_same_mesh(name, t, kept, "the first ones");
  check_same_mesh(name, t, step.targets, "the step");
  const bool fits = kept.size(0) == t.size(0) && kept.size(1) == t.size(1) && kept.size(3) == t.size(3) &&
                    kept.scalar_type() == t.scalar_type() && kept.size(2) == step.capacity() + 1;
  TORCH_CHECK_VALUE(fits, "[KVCache] ", name, " is ", t.scalar_type(), " ", t.sizes(), " of a step with the capacity ",
                    step.capacity(), ", but the cache was made for ", kept.scalar_type(), " [", kept.size(0), ", ",
                    kept.size(1), ", columns, ", kept.size(3), "] and the capacity ", kept.size(2) - 1,
                    ": use another cache for these");
}

// Zeros for all positions, in the given layout or that of `t`.
at::Tensor make_room(const at::Tensor& t, int64_t positions, const Placements& given) {
  const std::vector<int64_t> sizes{t.size(0), t.size(1), positions, t.size(3)};
  if (!is_dtensor(t)) {
    const PlainFactories plain;
    return at::zeros(sizes, t.options());
  }
  const DTensor first(t);
  Placements placements = given;
  for (const Placement& p : given.empty() ? first.placements() : Placements()) {
    const bool follows = p.is_sharded() && p.dim() < 2;
    placements.push_back(follows ? p : Replicate());
  }
  return zeros(sizes, first.mesh(), placements, {.dtype = t.scalar_type()});
}

void write(const at::Tensor& kept, const at::Tensor& t, const GenerationStep& step) {
  kept.scatter_(2, step.targets.view({step.slots(), 1, step.columns(), 1}).expand_as(t), t);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KVCache::update(const GenerationStep& step, const at::Tensor& k,
                                                  const at::Tensor& v) {
  check_new_tokens("k", k, keys_, step);
  check_new_tokens("v", v, values_, step);
  if (!keys_.defined()) {
    at::Tensor keys = make_room(k, step.capacity() + 1, placements_);
    values_ = make_room(v, step.capacity() + 1, placements_);
    keys_ = std::move(keys);
  }
  write(keys_, k, step);
  write(values_, v, step);
  return {keys_.narrow(2, 0, step.capacity()), values_.narrow(2, 0, step.capacity())};
}

void KVCache::clear(int64_t slot) {
  if (!keys_.defined()) return;
  TORCH_CHECK_INDEX(slot >= 0 && slot < keys_.size(0), "[KVCache] clear: slot is ", slot, ": 0 to ", keys_.size(0) - 1,
                    " are expected");
  at::Tensor mask;
  {
    const PlainFactories plain;
    mask = at::zeros({keys_.size(0), 1, 1, 1}, at::kBool);
    mask.select(0, slot).fill_(true);
  }
  if (is_dtensor(keys_)) {
    mask = distribute_tensor(mask, DTensor(keys_).mesh(), {}, /*source_rank=*/std::nullopt);
  } else {
    mask = mask.to(keys_.device());
  }
  keys_.masked_fill_(mask, 0);
  values_.masked_fill_(mask, 0);
}

}  // namespace dtensor
