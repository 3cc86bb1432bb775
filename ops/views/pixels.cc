// Pixels to channels and back, where space is split between whole pixels: dims that are split, permuted and flattened.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// pixel_shuffle(self, upscale_factor), pixel_unshuffle(self, downscale_factor). Otherwise the rule, with whole spatial
// dims.
template <bool kShuffle>
void pixels_as_dims(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t r = args[kShuffle ? "upscale_factor" : "downscale_factor"].toInt(), n = self.dim();
  bool fits = n >= 3 && r > 0, split = false;
  for (int64_t d = n - 3; fits && d < n; ++d) {
    const bool is_space = d >= n - 2;
    const int64_t factor = is_space ? r : r * r;  // factor by which the dim grows or shrinks
    const bool grows = kShuffle == is_space;
    fits = grows || self.size(d) % factor == 0;
    // Whole pixels stay together, and are divided evenly among the ranks before and after, along each mesh dim.
    const int64_t pixels = grows || !fits ? self.size(d) : self.size(d) / factor;
    int64_t parts = 1;
    for (size_t m = 0; m < spec_of(self)->placements().size(); ++m) {
      const Placement& p = spec_of(self)->placements()[m];
      if (!p.is_sharded() || p.dim() != d) continue;
      parts *= spec_of(self)->mesh().size(static_cast<int64_t>(m));
      split = split || is_space;
      fits = fits && p == Shard(d) && (pixels * factor + parts - 1) / parts == (pixels + parts - 1) / parts * factor;
    }
  }
  if (!fits || !split) return dispatch_by_rule(op, stack);
  const int64_t c = self.size(-3), h = self.size(-2), w = self.size(-1);
  const int64_t batch = self.numel() / std::max<int64_t>(c * h * w, 1);
  auto sizes = self.sizes().vec();
  at::Tensor t;
  if (kShuffle) {
    sizes[n - 3] = c / (r * r), sizes[n - 2] = h * r, sizes[n - 1] = w * r;
    t = self.reshape({batch, c / (r * r), r, r, h, w}).permute({0, 1, 4, 2, 5, 3});
  } else {
    sizes[n - 3] = c * r * r, sizes[n - 2] = h / r, sizes[n - 1] = w / r;
    t = self.reshape({batch, c, h / r, r, w / r, r}).permute({0, 1, 3, 5, 2, 4});
  }
  t = t.clone(at::MemoryFormat::Contiguous).view(sizes);  // ATen's result never shares memory, whatever the sizes
  if (self.is_cpu()) t = t.contiguous(self.suggest_memory_format());
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(t));
}

}  // namespace

const RuleFamily pixel_handlers("pixels", [](RuleRegistry& registry) {
  registry.add_handler("aten::pixel_shuffle", pixels_as_dims<true>);
  registry.add_handler("aten::pixel_unshuffle", pixels_as_dims<false>);
});

}  // namespace dtensor::internal
