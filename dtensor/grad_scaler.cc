#include "dtensor/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "dtensor/scopes.h"

namespace dtensor {
namespace {

// The defined gradients, in lists of one device and dtype, as the operator takes them.
std::vector<std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
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

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return loss * scale_; }

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
  bool found = false;
  for (const std::vector<at::Tensor>& gradients : lists) {
    const PlainFactories plain;
    const auto options = at::TensorOptions().dtype(at::kFloat).device(gradients[0].device());
    at::Tensor found_inf = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, at::full({1}, 1 / scale_, options));
    found = found_inf.item<float>() != 0 || found;
  }
  unscaled_.push_back({&optimizer, found, /*stepped=*/false});
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
  } else if (growth_tracker_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    growth_tracker_ = 0;
  }
}

void GradScaler::set_state(double scale, int64_t growth_tracker) {
  TORCH_CHECK_VALUE(scale > 0, "[GradScaler] the scale is ", scale, "; it must be above 0");
  TORCH_CHECK_VALUE(growth_tracker >= 0, "[GradScaler] growth_tracker is ", growth_tracker,
                    "; it must not be negative");
  scale_ = scale;
  growth_tracker_ = growth_tracker;
}

}  // namespace dtensor
