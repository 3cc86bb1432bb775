// Group normalization where the elements of a group are sharded, since images or a group's channels are split: the
// elements do not move, and the ranks exchange two numbers per group and sample, in forward and in backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/moments.h"
#include "ops/reduction/split_rows.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Channels in groups of equal size.
struct Groups {
  int64_t count = 1, size = 1;

  // The groups of the channels in `runs`.
  std::vector<int64_t> of(const IndexRanges& runs) const {
    std::vector<int64_t> groups;
    for (const IndexRange& run : runs) {
      for (int64_t c = run.begin; c < run.begin + run.size; ++c) groups.push_back(c / size);
    }
    return groups;
  }
  at::Tensor of(const IndexRanges& runs, const at::Tensor& beside) const {
    return at::tensor(of(runs), at::TensorOptions(at::kLong)).to(beside.device());
  }
};

// A call, forward or backward.
struct GroupNormCall {
  GroupNormCall(const c10::OperatorHandle& op, Stack& stack)
      : op(op),
        args(op, stack),
        grad(optional_tensor(args["grad_out"])),
        weight(optional_tensor(args["weight"])),
        bias(optional_tensor(args["bias"])),
        mean(optional_tensor(args["mean"])),
        rstd(optional_tensor(args["rstd"])) {
    const at::Tensor input = args.tensor("input");
    const int64_t channels = args["C"].toInt(), count = args["group"].toInt();
    if (input.dim() < 2 || input.size(1) != channels || count < 1 || channels % count != 0) return;
    for (const at::Tensor& w : {weight, bias}) {
      if (w.defined() && (w.dim() != 1 || w.size(0) != channels)) return;
    }
    groups = {count, channels / count};
    std::vector<int64_t> dims(static_cast<size_t>(input.dim() - 1));
    std::iota(dims.begin(), dims.end(), 1);
    auto split = split_rows(input, dims, 1, 1, {grad, weight, bias, mean, rstd});
    if (!split) return;
    // Ranks with whole groups follow the rule.
    const Spec& spec = *spec_of(input);
    may_split_channels = count % spec.mesh().size() == 0 || groups.size == 1;
    bool stays = true;
    for (const Placement& p : spec.placements()) {
      const bool whole_groups = p.is_sharded_on(1) && may_split_channels && (p.is_shard() || groups.size == 1);
      stays = stays && (!p.is_sharded() || p.dim() == 0 || whole_groups);
    }
    if (!stays) rows = std::move(split);
  }

  // Whether staying in place, with exchanges of `own` seconds, is cheaper.
  bool pays(double own, const std::vector<at::Tensor>& moving) const {
    SplitRows with_channels = *rows;
    if (may_split_channels) with_channels.others.push_back(1);
    return pays_to_stay(with_channels, own, moving, {weight, bias});
  }
  // [batch or 1, channels], in the input's layout.
  at::Tensor of_channels(const at::Tensor& t) const {
    std::vector<int64_t> shape(static_cast<size_t>(rows->input.dim()), 1);
    shape[0] = t.dim() == 2 ? t.size(0) : 1;
    shape[1] = t.size(-1);
    return t.view(shape);
  }
  at::Tensor beside(const at::Tensor& w, const char* name) const {
    return of_channels(brought(w, rows->weights, op, name).to(rows->dtype));
  }
  // Expands one number per group, along the last dim, to each channel.
  at::Tensor spread(const at::Tensor& t) const {
    at::Tensor index;
    {
      LocalGuard guard;
      index = groups.of({{0, groups.count * groups.size}}, rows->input);
    }
    return at::index_select(t, t.dim() - 1, replicate_plain(index, spec_of(t)->mesh()));
  }
  at::Tensor in_layout(const at::Tensor& y) const {
    const auto format = rows->input.suggest_memory_format();
    return y.to(rows->input.scalar_type()).contiguous(format);
  }

  const c10::OperatorHandle& op;
  const Arguments args;
  const at::Tensor grad, weight, bias, mean, rstd;
  Groups groups;
  bool may_split_channels = false;
  std::optional<SplitRows> rows;  // nullopt: use the rule
};

// Moments of each group of a rank's channels, combined from those of the channels.
std::vector<at::Tensor> moments_of_groups(const at::Tensor& local, const LocalLayout& part, const Groups& groups) {
  std::vector<int64_t> space(static_cast<size_t>(local.dim() - 2));
  std::iota(space.begin(), space.end(), 2);
  at::Tensor var = at::zeros_like(local), mean = local;  // without spatial dims each channel is one number
  if (!space.empty()) {
    const Moments channels = moments_of(local, space);
    const std::vector<int64_t> shape = {local.size(0), local.size(1)};
    var = channels.var.view(shape), mean = channels.mean.view(shape);
  }
  const std::vector<int64_t> of = groups.of(part.dims[1]);
  std::vector<int64_t> first(static_cast<size_t>(groups.count), 0);
  std::vector<double> count(static_cast<size_t>(groups.count), 0);
  for (size_t c = of.size(); c-- > 0;) first[of[c]] = static_cast<int64_t>(c), ++count[of[c]];
  for (double& n : count) n = std::max(n, 1.0);
  const at::Tensor index = groups.of(part.dims[1], local),
                   from = mean.index_select(1, at::tensor(first, index.options()));
  const at::Tensor weights = at::tensor(count, at::TensorOptions(at::kDouble)).to(mean.options()).reciprocal();
  const auto average = [&](const at::Tensor& t) {
    return t.new_zeros({t.size(0), groups.count}).index_add(1, index, t) * weights;
  };
  // Relative to one channel's mean: nothing is rounded for a constant.
  const at::Tensor shifted = mean - from.index_select(1, index), shift = average(shifted);
  var = average(var + (shifted - shift.index_select(1, index)).square());
  std::vector<int64_t> shape(static_cast<size_t>(local.dim()), 1);
  shape[0] = local.size(0);
  shape[1] = groups.count;
  return {var.view(shape), (from + shift).view(shape)};
}

// Each rank's summary of all groups, with ignored values for groups that it has nothing of.
SummaryRequest group_request(const GroupNormCall& call) {
  SummaryRequest request = moments_request(call.rows->dims, call.rows->dtype);
  request.groups = call.groups.count;
  request.summarize = [groups = call.groups, dtype = call.rows->dtype](const at::Tensor& local, const LocalLayout& part,
                                                                       int64_t) {
    return moments_of_groups(local.to(dtype), part, groups);
  };
  return request;
}

Combination group_combination(const SummaryRequest& request, const Groups& groups) {
  Combination combination;
  combination.dtypes = request.dtypes;
  combination.combine = [groups, dims = request.dims](const auto& columns, const auto& parts, const auto& group) {
    std::vector<double> shares;  // the fraction of a group's elements in each part, [parts, groups]
    std::vector<double> all(static_cast<size_t>(groups.count), 0);
    for (const LocalLayout& part : parts) {
      const auto of = groups.of(part.dims[1]);
      std::vector<double> own(static_cast<size_t>(groups.count), 0);
      const auto each =
          static_cast<double>(num_elements(part, dims)) / static_cast<double>(std::max<size_t>(1, of.size()));
      for (const int64_t g : of) own[g] += each;
      shares.insert(shares.end(), own.begin(), own.end());
      for (size_t g = 0; g < own.size(); ++g) all[g] += own[g];
    }
    for (size_t i = 0; i < shares.size(); ++i) shares[i] /= all[i % all.size()];
    at::Tensor weights = at::tensor(shares, at::TensorOptions(at::kDouble)).to(columns[0].options());
    weights = weights.view({static_cast<int64_t>(parts.size()), groups.count});
    if (group.defined()) weights = weights.index_select(1, group);
    // A part without elements of this group has the summary of another one, whose nan must not count here.
    const at::Tensor nothing = weights.eq(0);
    const Moments moments = combined({columns[0].masked_fill(nothing, 0), columns[1].masked_fill(nothing, 0)}, weights);
    return std::vector<at::Tensor>{moments.var, moments.mean};
  };
  return combination;
}

// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps).
void group_norm(const c10::OperatorHandle& op, Stack& stack) {
  const GroupNormCall call(op, stack);
  if (!call.rows) return dispatch_by_rule(op, stack);
  const at::Tensor& input = call.rows->input;
  const SummaryRequest request = group_request(call);
  const Combination combination = group_combination(request, call.groups);
  if (!call.pays(seconds_to_combine(*spec_of(input), request, combination), {input}))
    return dispatch_by_rule(op, stack);
  const auto moments =
      combine_summaries(input, request, combination, call_cause(op, "input", {input, call.weight, call.bias}));
  const std::vector<int64_t> shape = {input.size(0), call.groups.count};
  const at::Tensor mean = moments[1].view(shape);
  const at::Tensor rstd = at::rsqrt(moments[0].view(shape) + call.args["eps"].toDouble());
  const at::Tensor y = input.to(call.rows->dtype) - call.of_channels(call.spread(mean));
  y.mul_(call.of_channels(call.spread(rstd)));
  if (call.weight.defined()) y.mul_(call.beside(call.weight, "weight"));
  if (call.bias.defined()) y.add_(call.beside(call.bias, "bias"));
  const auto dtype = stats_type(*call.rows, {call.weight, call.bias});
  return_tensors(op, stack, {call.in_layout(y), mean.to(dtype), rstd.to(dtype)});
}

// ------------------------------------------------------------ gradients

// Sums over groups of two tensors [batch, channels] of one layout, [2, batch, groups]: every rank adds up its channels.
at::Tensor sums_of_groups(const at::Tensor& a, const at::Tensor& b, const Groups& groups) {
  const DTensorMeta &first = meta_for_read(a), &second = meta_for_read(b);
  Placements placements = first.spec->placements();
  for (Placement& p : placements) {
    if (p.is_sharded_on(1)) {
      p = Partial();
    } else if (p.is_sharded()) {
      p = p.is_shard() ? Shard(1) : StridedShard(1, p.split_factor());
    }
  }
  RankTensors locals;
  for (size_t i = 0; i < first.locals.size(); ++i) {
    LocalGuard guard;
    const at::Tensor both = at::stack({first.locals[i], second.locals[i]});
    const at::Tensor index = groups.of(first.spec->local_layout(static_cast<int64_t>(i)).dims[1], both);
    locals.push_back(both.new_zeros({2, both.size(1), groups.count}).index_add(2, index, both));
  }
  const Shape sizes = {2, a.size(0), groups.count};
  return make_result(Spec::get(first.spec->mesh(), placements, at::IntArrayRef(sizes), a.scalar_type()),
                     std::move(locals));
}

std::array<at::Tensor, 3> gradients(const GroupNormCall& call, const std::array<bool, 3>& mask) {
  const SplitRows& rows = *call.rows;
  const at::Tensor g =
      brought(call.grad, spec_of(rows.input)->placements(), call.op, "grad_out", call.weight).to(rows.dtype);
  const auto stats = [&](const at::Tensor& t, const char* what) {
    return call.of_channels(call.spread(
        reduced(t, call.op, what, call.weight).to(rows.dtype).view({rows.input.size(0), call.groups.count})));
  };
  const at::Tensor rstd = stats(call.rstd, "rstd");
  const at::Tensor normal = (rows.input.to(rows.dtype) - stats(call.mean, "mean")) * rstd;
  std::vector<int64_t> space(static_cast<size_t>(g.dim() - 2));
  std::iota(space.begin(), space.end(), 2);
  const auto over_space = [&](const at::Tensor& t) { return space.empty() ? t : t.sum(space); };
  const at::Tensor sums = over_space(g);
  const at::Tensor products =
      brought(over_space(g * normal), spec_of(sums)->placements(), call.op, "products", call.weight);
  std::array<at::Tensor, 3> result;
  if (mask[0]) {
    at::Tensor scaled = g, own = sums, own_products = products;
    if (call.weight.defined()) {
      const at::Tensor w = brought(call.weight, rows.weights, call.op, "weight").to(rows.dtype);
      scaled = g * call.of_channels(w.view({1, -1}));
      own = sums * w;
      own_products = brought(products * w, spec_of(own)->placements(), call.op, "products", call.weight);
    }
    const at::Tensor means = reduced(sums_of_groups(own, own_products, call.groups), call.op, "sums", call.weight) /
                             (static_cast<double>(rows.size()) / static_cast<double>(call.groups.count));
    const at::Tensor spread = call.spread(means);
    const at::Tensor centered =
        (scaled - call.of_channels(spread.select(0, 0))).sub_(normal * call.of_channels(spread.select(0, 1)));
    result[0] = call.in_layout(centered.mul_(rstd));
  }
  const auto dtype = call.weight.defined() ? call.weight.scalar_type() : rows.input.scalar_type();
  if (mask[1]) result[1] = cast_addends(products.sum(0), dtype);
  if (mask[2]) result[2] = cast_addends(sums.sum(0), dtype);
  return result;
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask).
void group_norm_backward(const c10::OperatorHandle& op, Stack& stack) {
  const GroupNormCall call(op, stack);
  if (!call.rows || !call.grad.defined()) return dispatch_by_rule(op, stack);
  const double own = call.rows->seconds_to_add(2 * call.groups.count);
  if (!call.pays(own, {call.rows->input, call.grad})) return dispatch_by_rule(op, stack);
  const auto wanted = call.args["output_mask"].toBoolList();
  const auto all = gradients(call, {wanted.get(0), wanted.get(1), wanted.get(2)});
  return_tensors(op, stack, {all.begin(), all.end()});
}

}  // namespace

const RuleFamily split_group_norm_handlers("split_group_norm", [](RuleRegistry& registry) {
  registry.add_handler("aten::native_group_norm", group_norm);
  registry.add_handler("aten::native_group_norm_backward", group_norm_backward);
});

}  // namespace dtensor::internal
