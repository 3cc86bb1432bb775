// Scales the loss for training under autocast to float16, whose gradients would otherwise become zero, and skips steps
// whose gradients are infinite or nan. All ranks decide alike: an infinity on one rank of a mesh counts on all ranks of
// all meshes of the optimizer's parameters.
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                                  // needed before clip_grad_norm_, else step() does it
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1);
//   scaler.step(optimizer);
//   scaler.update();
//
// Communicates in unscale_(): once for each mesh of the gradients, and once more if there are several meshes, as in a
// pipeline. Parameters are in float32; plain ones of a process count in this process alone.
// Source: torch.amp.GradScaler; Micikevicius et al., Mixed Precision Training, ICLR 2018.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace dtensor {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // of the scale, after growth_interval steps without infinities
  double backoff_factor = 0.5;     // of the scale, after a step with one
  int64_t growth_interval = 2000;  // steps
};

class GradScaler {
 public:
  // Errors (ValueError): init_scale <= 0, growth_factor <= 1, backoff_factor not between 0 and 1, growth_interval < 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  // loss * get_scale(), differentiable.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the optimizer's parameters by the scale. All ranks call it alike.
  // Errors (c10::Error): called twice before update(); no parameter has a gradient; a gradient in float16, which would
  // lose what the scale has kept, or one that is Partial. After an error of the operator itself: zero_grad(), update().
  void unscale_(torch::optim::Optimizer& optimizer);
  // unscale_(), unless it was called, and optimizer.step(), unless a gradient is infinite or nan. Returns whether the
  // optimizer stepped. Error (c10::Error): called twice before update().
  bool step(torch::optim::Optimizer& optimizer);
  // Call after the last step() of an iteration: adapts the scale. Error (c10::Error): no unscale_() or step() before.
  void update();

  double get_scale() const { return scale_; }
  // For checkpoints: how many steps in a row had no infinity. set_state() takes what get_scale() and this returned.
  // Error (ValueError): a scale that is not finite or not above 0, or a negative number.
  int64_t growth_tracker() const { return growth_tracker_; }
  void set_state(double scale, int64_t growth_tracker);

 private:
  struct Unscaled {
    const torch::optim::Optimizer* optimizer;
    bool found_inf;
    bool stepped;
  };
  Unscaled* find(const torch::optim::Optimizer& optimizer);

  GradScalerOptions options_;
  double scale_;
  int64_t growth_tracker_ = 0;
  std::vector<Unscaled> unscaled_;  // since the last update()
};

}  // namespace dtensor
