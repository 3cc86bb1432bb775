#include "ops/matrix/fourier_stages.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/cut_dims.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The stages of a call, one after the other, on specs.
class StagePlanner {
 public:
  StagePlanner(SpecPtr self, const FourierDims& dims, const Limits& limits)
      : at_(std::move(self)), limits_(limits), pending_(at_->ndim(), false) {
    for (const int64_t d : dims) pending_[d] = true;
  }

  // `args`: the arguments after the dims in the schema. REQUIRES: one dim, or dims that are whole.
  void add(const char* op, const FourierDims& dims, const std::vector<c10::IValue>& args) {
    if (seconds_ == kNever) return;
    std::optional<Placements> layout;
    if (is_cut(*at_, dims[0])) {
      layout = layout_with_whole(dims[0]);
      if (!layout) {
        seconds_ = kNever;
        return;
      }
      seconds_ += seconds_to_move(at_, *layout, limits_);
      at_ = at_->with_placements(*layout);
    }
    std::vector<c10::IValue> all{dims};
    all.insert(all.end(), args.begin(), args.end());
    const OpCall call = OpCall::make(op, {at_}, all);
    const auto decision = propagate(call);
    seconds_ += decision->input_seconds();
    at_ = decision->outputs[0];
    for (const int64_t d : dims) pending_[d] = false;
    stages_.push_back({call.op, std::move(all), std::move(layout)});
  }

  // First all dims that are whole, at once; then the others.
  void add_complex(const FourierDims& dims, int64_t normalization, bool forward) {
    FourierDims whole, cut;
    for (const int64_t d : dims) (is_cut(*at_, d) ? cut : whole).push_back(d);
    if (!whole.empty()) add("aten::_fft_c2c", whole, {normalization, forward});
    for (size_t i = cut.size(); i-- > 0;) add("aten::_fft_c2c", {cut[i]}, {normalization, forward});
  }

  double seconds() const { return seconds_; }  // kNever: they exceed the limits
  std::vector<FourierStage> stages() && { return std::move(stages_); }

 private:
  // Moves the sharding of `dim` to the dim for which that takes the least time. A dim that is still to be transformed
  // has to move once more. nullopt: no other dim stays within the limits.
  std::optional<Placements> layout_with_whole(int64_t dim) const {
    std::optional<Placements> best;
    double least = kNever;
    for (int64_t other = 0; other < at_->ndim(); ++other) {
      if (other == dim) continue;
      Placements layout = at_->placements();
      for (size_t m = 0; m < layout.size(); ++m) {
        if (cuts_dim(*at_, m, dim)) layout[m] = Shard(other);
      }
      const double seconds = seconds_to_move(at_, layout, limits_) * (pending_[other] ? 2 : 1);
      if (seconds >= least) continue;
      least = seconds;
      best = std::move(layout);
    }
    return best;
  }

  SpecPtr at_;  // layout after the stages so far
  const Limits limits_;
  std::vector<bool> pending_;
  double seconds_ = 0;
  std::vector<FourierStage> stages_;
};

// Time of the rule's way; infinity where it exceeds the limits.
double rule_seconds(const OpCall& call, const Decision& unlimited) {
  if (!call.context.scope.limits.any()) return unlimited.input_seconds();
  try {
    return propagate(call)->input_seconds();
  } catch (const c10::ValueError&) {
    return kNever;
  }
}

// Dim by dim, if that moves less than the rule's way; else no stages.
FourierStages plan_stages(OpCall call, const FourierDims& dims) {
  const Limits limits = std::exchange(call.context.scope.limits, {});
  const auto by_rule = propagate(call);  // or why it is no call
  call.context.scope.limits = limits;
  const double least = rule_seconds(call, *by_rule);
  if (least == 0) return {};

  // Normalisation factors multiply: every dim has its own.
  const int64_t normalization = call.get_int("normalization");
  const FourierDims last{dims.back()}, others(dims.begin(), dims.end() - 1);
  StagePlanner planner(call.inputs[0], dims, limits);
  if (call.has_arg("onesided")) {
    planner.add("aten::_fft_r2c", last, {normalization, call.get_bool("onesided")});
    planner.add_complex(others, normalization, /*forward=*/true);
  } else if (call.has_arg("last_dim_size")) {
    planner.add_complex(others, normalization, /*forward=*/false);
    planner.add("aten::_fft_c2r", last, {normalization, call.get_int("last_dim_size")});
  } else {
    planner.add_complex(dims, normalization, call.get_bool("forward"));
  }
  if (planner.seconds() >= least) return {};
  return {std::move(planner).stages(), by_rule->outputs[0]->strides()};
}

// By operator, rules, spec, limits and arguments.
struct KnownStages : Memo<std::vector<int64_t>, std::shared_ptr<const FourierStages>, 512> {};

}  // namespace

std::optional<FourierDims> dims_to_part(const at::Tensor& self, const Arguments& args) {
  FourierDims dims = args["dim"].toIntVector();
  if (dims.size() < 2 || self.numel() == 0) return std::nullopt;
  std::vector<bool> seen(static_cast<size_t>(self.dim()), false);
  bool split = false;
  for (int64_t& d : dims) {
    d += d < 0 ? self.dim() : 0;
    if (d < 0 || d >= self.dim() || seen[d]) return std::nullopt;
    seen[d] = true;
    split = split || is_cut(*spec_of(self), d);
  }
  return split ? std::optional(dims) : std::nullopt;
}

std::shared_ptr<const FourierStages> decide_stages(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                                   const at::Tensor& self, const FourierDims& dims) {
  const SpecPtr& spec = spec_of(self);
  const Limits& limits = current_dispatch_scope().hints.limits;
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  std::vector<int64_t> key{static_cast<int64_t>(reinterpret_cast<intptr_t>(&op.schema())),
                           static_cast<int64_t>(RuleRegistry::instance().generation()),
                           static_cast<int64_t>(spec->id()),
                           limits.max_bytes,
                           args[2].toInt(),
                           args[3].isBool() ? args[3].toBool() : args[3].toInt()};
  key.insert(key.end(), dims.begin(), dims.end());
  auto& memo = spec->mesh().world().attachment<KnownStages>();
  if (auto known = memo.find(key)) return *known;
  LocalGuard guard;  // shape functions make plain tensors, also inside a MeshScope
  OpCall call = OpCall::make(c10::toString(op.operator_name()), {spec}, args.vec());
  call.context.scope.limits = limits;
  auto stages = std::make_shared<const FourierStages>(plan_stages(std::move(call), dims));
  memo.insert(std::move(key), stages, {spec});
  return stages;
}

}  // namespace dtensor::internal
