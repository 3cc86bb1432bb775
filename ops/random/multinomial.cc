// multinomial: categories drawn row by row, each rank for the rows that it holds. The random numbers are those of
// random.h, so that the result depends on the seed and the row, not on mesh or layout.
//
// An invalid distribution is an error on all ranks that share the row: they exchange first, so that no rank waits for
// one that has thrown. Ranks of other rows do not get the error, as with an index out of range.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>

#include <limits>
#include <tuple>
#include <utility>

#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/random/random.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

constexpr const char* kInvalid = "probability tensor contains either `inf`, `nan` or element < 0";
constexpr const char* kNothingToDraw = "invalid multinomial distribution (sum of probabilities <= 0)";

at::Tensor laid_out(const at::Tensor& t, const Placements& layout) {
  return redistribute_below_autograd(t, layout, {"aten::multinomial", "self", module_of_call(t), /*implicit=*/true});
}

// Sets nan where a probability is invalid.
void mark_invalid(const at::Tensor& speeds, const at::Tensor& p) {
  const RankTensors &marked = meta_for_read(speeds).locals, &given = meta_for_read(p).locals;
  LocalGuard guard;
  for (size_t i = 0; i < given.size(); ++i) {
    const at::Tensor valid = given[i].ge(0).logical_and_(given[i].lt(std::numeric_limits<double>::infinity()));
    marked[i].masked_fill_(valid.logical_not(), std::numeric_limits<double>::quiet_NaN());
  }
}

// Exponential race: a category's arrival time has its probability as rate, and the first arrivals are the samples, in
// order and without replacement (as in LibTorch). If categories are split over ranks, only the best of each rank are
// sent.
at::Tensor race(const at::Tensor& p, int64_t samples, uint64_t key) {
  const auto dtype = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor times = at::empty_like(p, p.options().dtype(dtype), at::MemoryFormat::Contiguous);
  fill_random(times, {RandomKind::kExponential, /*a=*/1}, key);
  times.clamp_min_(std::numeric_limits<float>::min());  // 0 / 0 would be nan
  const at::Tensor speeds = p.to(dtype) / times;
  mark_invalid(speeds, p);
  const auto [best, categories] = samples == 1 ? at::max(speeds, -1, /*keepdim=*/true) : at::topk(speeds, samples, -1);
  LocalGuard guard;
  for (const at::Tensor& local : meta_for_read(best).locals) {
    if (local.numel() == 0) continue;
    const at::Tensor first = local.select(-1, 0);  // nan if there is one
    if (first.gt(0).all().item<bool>()) continue;
    TORCH_CHECK(!first.isnan().any().item<bool>(), kInvalid);
    TORCH_CHECK(false, kNothingToDraw);
  }
  return categories;
}

// The positions of random numbers among the cumulated probabilities.
at::Tensor search(const at::Tensor& given, const Shape& sizes, uint64_t key) {
  const int64_t last = given.dim() - 1;
  Placements layout = spec_of(given)->placements();
  for (Placement& placement : layout) {
    if (placement.is_sharded_on(last)) placement = Replicate();
  }
  const at::Tensor p = laid_out(given, layout);
  const DeviceMesh& mesh = spec_of(p)->mesh();
  const SpecPtr drawn_spec = Spec::get(mesh, layout, sizes, at::kDouble);
  const RankTensors& locals = meta_for_read(p).locals;
  RankTensors drawn_locals, found;
  for (size_t i = 0; i < locals.size(); ++i) {
    LocalGuard guard;
    drawn_locals.push_back(
        at::empty(drawn_spec->local_shape(static_cast<int64_t>(i)), locals[i].options().dtype(at::kDouble)));
  }
  const at::Tensor drawn = make_dtensor(drawn_spec, std::move(drawn_locals));
  fill_random(drawn, {RandomKind::kUniform, 0, 1}, key);
  for (size_t i = 0; i < locals.size(); ++i) {
    LocalGuard guard;
    if (locals[i].numel() > 0) {
      const bool valid = locals[i].min().item<double>() >= 0 &&
                         locals[i].max().item<double>() < std::numeric_limits<double>::infinity();  // false for nan
      TORCH_CHECK(valid, kInvalid);
    }
    const at::Tensor sums = locals[i].to(at::kDouble).cumsum(-1), total = sums.narrow(-1, sums.size(-1) - 1, 1);
    TORCH_CHECK(total.gt(0).all().item<bool>(), kNothingToDraw);
    // Below the cumulated sum of the category, not below the previous one: categories of probability 0 are never drawn.
    found.push_back(
        at::searchsorted(sums, meta_for_read(drawn).locals[i] * total, /*out_int32=*/false, /*right=*/true));
  }
  return make_dtensor(Spec::get(mesh, layout, sizes, at::kLong), std::move(found));
}

// multinomial(self, num_samples, replacement, generator).
void multinomial(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t samples = args["num_samples"].toInt();
  const bool replacement = args["replacement"].toBool();
  Shape sizes(self.sizes().begin(), self.sizes().end());
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(self.is_floating_point(),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || samples <= sizes.back(),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(sizes.back() > 0, kNothingToDraw);
  const at::Tensor p = laid_out(self, without_partials(spec_of(self)->placements()));
  // Drawn before the check, which may fail on some ranks only, so that all ranks' generators stay in step.
  const uint64_t key = spec_of(p)->mesh().world().has_data() ? draw_random_key(args.generator()) : 0;
  sizes.back() = samples;
  at::Tensor result = replacement && samples > 1 ? search(p, sizes, key) : race(p, samples, key);
  result = write_out(args.out(), result, op);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

}  // namespace

const RuleFamily multinomial_handlers("multinomial", [](RuleRegistry& registry) {
  registry.add_handler("aten::multinomial", multinomial);
});

}  // namespace dtensor::internal
