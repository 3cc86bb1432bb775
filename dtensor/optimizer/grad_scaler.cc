#include "dtensor/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
namespace {

// The defined gradients, in lists of one device and dtype, as the operator takes them.
std::vector<std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(grad.scalar_type() != at::kHalf,
                  "[GradScaler] a gradient is in float16, which would lose what the scale has kept: keep parameters in "
                  "float32 and use autocast");
      TORCH_CHECK(!is_dtensor(grad) || !internal::spec_of(grad)->has_partial(), "[GradScaler] a gradient is ",
                  is_dtensor(grad) ? internal::spec_of(grad)->to_string() : "",
                  ": call reduce_gradients(parameters) before");
      const auto list = std::find_if(lists.begin(), lists.end(), [&](const auto& l) {
        return l[0].device() == grad.device() && l[0].scalar_type() == grad.scalar_type();
      });
      if (list == lists.end()) {
        lists.push_back({grad});
      } else {
        list->push_back(grad);
      }
    }
  }
  return lists;
}

// The meshes of the parameters, also of those whose ranks other processes own.
std::vector<DeviceMesh> meshes_of(torch::optim::Optimizer& optimizer) {
  std::vector<DeviceMesh> meshes;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      if (!is_dtensor(p)) continue;
      const DeviceMesh& mesh = internal::spec_of(p)->mesh();
      if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
    }
  }
  return meshes;
}

// Whether `found` is true on a rank of any of `meshes`.
bool found_on_any(const std::vector<DeviceMesh>& meshes, bool found) {
  if (meshes.size() < 2) return found;  // the operator has reduced the flag over its mesh
  std::set<int64_t> ranks;
  for (const DeviceMesh& mesh : meshes) ranks.insert(mesh.ranks().begin(), mesh.ranks().end());
  const DeviceMesh all(meshes[0].world(), {static_cast<int64_t>(ranks.size())}, {"all"}, {ranks.begin(), ranks.end()});
  const PlainFactories plain;
  std::vector<at::Tensor> flags;
  for (const int64_t rank : all.local_ranks()) {
    const auto options = at::TensorOptions(at::kFloat).device(all.world().device(rank));
    flags.push_back(at::full({1}, found ? 1. : 0., options));
  }
  return full_tensor(from_local(flags, all, {Partial(ReduceOp::kMax)})).item<float>() != 0;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  TORCH_CHECK_VALUE(options.init_scale > 0, "[GradScaler] init_scale is ", options.init_scale, "; it must be above 0");
  TORCH_CHECK_VALUE(options.growth_factor > 1, "[GradScaler] growth_factor is ", options.growth_factor,
                    "; it must be above 1");
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1, "[GradScaler] backoff_factor is ",
                    options.backoff_factor, "; it must be between 0 and 1");
  TORCH_CHECK_VALUE(options.growth_interval >= 1, "[GradScaler] growth_interval is ", options.growth_interval,
                    "; it must be at least 1");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return loss.mul(scale_); }

GradScaler::Unscaled* GradScaler::find(const torch::optim::Optimizer& optimizer) {
  const auto it =
      std::find_if(unscaled_.begin(), unscaled_.end(), [&](const Unscaled& u) { return u.optimizer == &optimizer; });
  return it == unscaled_.end() ? nullptr : &*it;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(find(optimizer) == nullptr,
              "[GradScaler] unscale_() was called for this optimizer already since the last update()");
  const at::NoGradGuard no_grad;
  const auto lists = gradients_of(optimizer);
  TORCH_CHECK(!lists.empty(), "[GradScaler] no parameter of the optimizer has a gradient: call backward() before");
  unscaled_.push_back({&optimizer, /*found_inf=*/false, /*stepped=*/false});
  bool found = false;
  for (const std::vector<at::Tensor>& gradients : lists) {
    const PlainFactories plain;
    const auto options = at::TensorOptions().dtype(at::kFloat).device(gradients[0].device());
    at::Tensor found_inf = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, at::full({1}, 1 / scale_, options));
    found = found_inf.item<float>() != 0 || found;
  }
  unscaled_.back().found_inf = found_on_any(meshes_of(optimizer), found);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (find(optimizer) == nullptr) unscale_(optimizer);
  Unscaled& unscaled = *find(optimizer);
  TORCH_CHECK(!unscaled.stepped, "[GradScaler] step() was called for this optimizer already since the last update()");
  unscaled.stepped = true;
  if (!unscaled.found_inf) optimizer.step();
  return !unscaled.found_inf;
}

void GradScaler::update() {
  TORCH_CHECK(!unscaled_.empty(), "[GradScaler] update() without unscale_() or step() before");
  const bool found = std::any_of(unscaled_.begin(), unscaled_.end(), [](const Unscaled& u) { return u.found_inf; });
  unscaled_.clear();
  growth_tracker_ = found ? 0 : growth_tracker_ + 1;
  if (found) {
    scale_ *= options_.backoff_factor;
  } else if (growth_tracker_ >= options_.growth_interval) {
    scale_ *= options_.growth_factor;
    growth_tracker_ = 0;
  }
}

void GradScaler::set_state(double scale, int64_t growth_tracker) {
  TORCH_CHECK_VALUE(scale > 0 && std::isfinite(scale), "[GradScaler] the scale is ", scale,
                    "; it must be finite and above 0");
  TORCH_CHECK_VALUE(growth_tracker >= 0, "[GradScaler] growth_tracker is ", growth_tracker,
                    "; it must not be negative");
  scale_ = scale;
  growth_tracker_ = growth_tracker;
}

}  // namespace dtensor
