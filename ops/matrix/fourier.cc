// Fourier transforms: linear, the transformed dims whole. Where one of these is split and another dim is not, the ranks
// exchange parts (an all-to-all) rather than gather the tensor. A transform of several dims is one of each dim after
// the other, so no two of them have to be whole at once: see by_dim() below.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resolve_conj.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/matrix/fourier_stages.h"
#include "ops/support/arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/cut_dims.h"
#include "ops/support/meta_tensor.h"
#include "plan/cost_model.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

CoreDims transform_dims(const OpCall& call) {
  CoreDims dims{pointwise(call), {}};
  const auto transformed = *call.get_ints("dim");
  for (const int64_t d : transformed)
    dims.rule.need_replication.push_back(static_cast<int>(wrap_dim(d, call.input("self")->ndim())));
  dims.rule.terms = {{0}};
  return dims;
}

// Two elements along every dim, with the memory order of `self`.
at::Tensor small_like(const Spec& self) {
  const std::vector<int64_t> sizes(self.ndim(), 2);
  std::vector<int64_t> order, strides(self.ndim());
  for (int64_t d = 0; d < self.ndim(); ++d) order.push_back(d);
  // Of equal strides the last dim comes first.
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return self.strides()[a] != self.strides()[b] ? self.strides()[a] < self.strides()[b] : a > b;
  });
  int64_t stride = 1;
  for (const int64_t d : order) {
    strides[d] = stride;
    stride *= 2;
  }
  return at::empty_strided(sizes, strides, at::TensorOptions(self.dtype())).zero_();
}

// In memory the transformed dims come last, in an order that depends on the kernel: a transform of two elements along
// every dim shows it.
OutputMetas transform_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  const auto dims = *call.get_ints("dim");
  const bool to_real = call.has_arg("last_dim_size");
  OpCall small = call;
  if (to_real) small.args[call.arg_index("last_dim_size")] = 2;
  OutputMetas metas = trial_run(small, c10::DeviceType::CPU, [&](int) { return small_like(self); });
  TensorMeta& result = metas.tensors.at(0).value();
  result.sizes = self.sizes();
  if (!dims.empty()) {
    int64_t& last = result.sizes[wrap_dim(dims.back(), self.ndim())];
    if (to_real) last = call.get_int("last_dim_size");
    if (call.has_arg("onesided") && call.get_bool("onesided")) last = last / 2 + 1;
  }
  const auto strides = local_strides(result.sizes, result.strides);
  result.strides.assign(strides.begin(), strides.end());
  return metas;
}

// ------------------------------------------------------------ dim by dim

using torch::jit::Stack;
// The same tensor with the memory order of the global `strides`.
at::Tensor with_strides(const at::Tensor& t, const Shape& strides) {
  const Spec& spec = *spec_of(t);
  if (spec.strides() == strides) return t;
  RankTensors locals;
  for (const at::Tensor& local : meta_for_read(t).locals) {
    LocalGuard guard;
    locals.push_back(at::empty_strided(local.sizes(), local_strides(local.sizes(), strides), local.options()));
    locals.back().copy_(local);
  }
  return make_result(Spec::get(spec.mesh(), spec.placements(), TensorMeta{spec.sizes(), strides, spec.dtype()}),
                     std::move(locals));
}

at::Tensor by_dim(const c10::OperatorHandle& op, at::Tensor t, const FourierStages& plan) {
  const CommCause cause = call_cause(op, "self", t);
  for (const FourierStage& stage : plan.stages) {
    if (stage.layout) t = redistribute_below_autograd(t, *stage.layout, cause);
    Stack stack{t};
    stack.insert(stack.end(), stage.args.begin(), stage.args.end());
    dispatch_by_rule(stage.op, stack);
    t = stack.back().toTensor();
  }
  return with_strides(t, plan.strides);
}

void transform(const c10::OperatorHandle& op, Stack& stack) {
  // Before it calls the kernel, which depends on strides, ATen copies a conjugated tensor to dense memory.
  c10::IValue& self = torch::jit::peek(stack, 0, op.schema().arguments().size());
  if (conj_neg_bits(meta_without_sync(self.toTensor()).locals).conj) self = at::resolve_conj(self.toTensor());
  const at::Tensor t = self.toTensor();
  const auto dims = dims_to_part(t, Arguments(op, stack));
  const auto plan = dims ? decide_stages(op, stack, t, *dims) : nullptr;
  if (plan == nullptr || plan->stages.empty()) return dispatch_by_rule(op, stack);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(by_dim(op, t, *plan));
}

// ------------------------------------------------------------ composites

// fft_fft(self, n?, dim, norm?), fft_fftn(self, s?, dim?, norm?) and the like cut or pad the dims to the given sizes
// first, and those of Hermitian signals transform in two steps. If such a dim is sharded, each step would move the
// tensor; so it is redistributed once, to a layout with these dims whole.

// The dims that a composite transforms, from 0, and the sizes that they are cut or padded to. nullopt: invalid
// arguments, and the operator itself reports the error.
struct Resized {
  FourierDims dims, sizes;
};

std::optional<Resized> resized_dims(const at::Tensor& self, const c10::OperatorHandle& op, const Arguments& args) {
  const bool one = op.schema().argumentIndexWithName("n").has_value();
  const c10::IValue &dim = args["dim"], &size = args[one ? "n" : "s"];
  Resized result;
  if (one && !size.isNone()) result.sizes = {size.toInt()};
  if (!one && !size.isNone()) result.sizes = size.toIntVector();
  if (one) {
    result.dims = {dim.toInt()};
  } else if (!dim.isNone()) {
    result.dims = dim.toIntVector();
  } else {
    const auto count = size.isNone() ? self.dim() : static_cast<int64_t>(result.sizes.size());
    for (int64_t d = self.dim() - count; d < self.dim(); ++d) result.dims.push_back(d);
  }
  if (result.dims.empty() || (!size.isNone() && result.sizes.size() != result.dims.size())) return std::nullopt;
  for (int64_t& d : result.dims) {
    d += d < 0 ? self.dim() : 0;
    if (d < 0 || d >= self.dim()) return std::nullopt;
  }
  const std::string& name = op.schema().name();
  const bool to_real = name.find("_irfft") != std::string::npos || name.find("_hfft") != std::string::npos;
  for (size_t i = 0; i < result.dims.size(); ++i) {
    const int64_t own = self.size(result.dims[i]);
    if (result.sizes.size() <= i)
      result.sizes.push_back(own);
    else if (result.sizes[i] == -1)
      result.sizes[i] = own;
    else if (to_real && i + 1 == result.dims.size())
      result.sizes[i] = result.sizes[i] / 2 + 1;
    if (result.sizes[i] < 1) return std::nullopt;
  }
  return result;
}

// The layout for `self` before the steps: shardings of those dims move to dims that are not transformed (a tensor of
// one dim becomes Replicate). nullopt: no such dim is sharded, or the resized tensor is so much smaller that moving it
// later takes less time.
std::optional<Placements> layout_for_steps(const at::Tensor& self, const Resized& resized, bool two_steps) {
  const SpecPtr& spec = spec_of(self);
  const auto is_transformed = [&](int64_t d) {
    return std::find(resized.dims.begin(), resized.dims.end(), d) != resized.dims.end();
  };
  Shape sizes = spec->sizes();
  bool moves = false;
  for (size_t i = 0; i < resized.dims.size(); ++i) {
    const int64_t d = resized.dims[i];
    sizes[d] = resized.sizes[i];
    moves = moves || (is_cut(*spec, d) && (two_steps || sizes[d] != spec->sizes()[d]));
  }
  if (!moves) return std::nullopt;
  const SpecPtr later = Spec::get(spec->mesh(), spec->placements(), at::IntArrayRef(sizes), spec->dtype());
  const Limits& limits = current_dispatch_scope().hints.limits;
  std::optional<Placements> best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t other = 0; other < spec->ndim(); ++other) {
    if (is_transformed(other) && spec->ndim() > 1) continue;
    Placements layout = spec->placements();
    int64_t pieces = 1;
    for (size_t m = 0; m < layout.size(); ++m) {
      if (!layout[m].is_sharded()) continue;
      if (is_transformed(layout[m].dim())) layout[m] = spec->ndim() > 1 ? Shard(other) : Replicate();
      if (layout[m].is_sharded_on(other)) pieces *= spec->mesh().size(static_cast<int64_t>(m));
    }
    if (pieces > spec->sizes()[other]) continue;  // some ranks would get nothing
    const double seconds = seconds_to_move(spec, layout, limits);
    if (seconds >= least) continue;
    // Else the steps take one more exchange.
    const double one_more = cost_model(spec->mesh().world())->least(0);
    if (seconds > seconds_to_move(later, layout, limits) + one_more) continue;
    least = seconds;
    best = std::move(layout);
  }
  return best;
}

template <bool kTwoSteps>
void in_steps(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto resized = is_dtensor(self) && self.numel() > 0 ? resized_dims(self, op, args) : std::nullopt;
  const auto layout = resized ? layout_for_steps(self, *resized, kTwoSteps && resized->dims.size() > 1) : std::nullopt;
  if (layout) {
    const CommCause cause = call_cause(op, "self", self);
    args.set("self", redistribute_as(self, *layout, cause));
  }
  run_without_handler(op, stack);
}

}  // namespace

const RuleFamily fourier_rules("fourier", [](RuleRegistry& registry) {
  for (const char* op : {"aten::fft_fft", "aten::fft_ifft", "aten::fft_rfft", "aten::fft_irfft", "aten::fft_hfft",
                         "aten::fft_ihfft", "aten::fft_fft2", "aten::fft_ifft2", "aten::fft_rfft2", "aten::fft_irfft2",
                         "aten::fft_fftn", "aten::fft_ifftn", "aten::fft_rfftn", "aten::fft_irfftn"})
    registry.add_handler(op, in_steps<false>);
  for (const char* op : {"aten::fft_hfft2", "aten::fft_ihfft2", "aten::fft_hfftn", "aten::fft_ihfftn"})
    registry.add_handler(op, in_steps<true>);
  for (const char* op : {"aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"}) {
    registry.add(op, core_dims_rule(transform_dims, transform_metas));
    registry.add_handler(op, transform);
  }
});

}  // namespace dtensor::internal
