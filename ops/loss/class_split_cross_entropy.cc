#include "ops/loss/class_split_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/combine_summaries.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

// The logits' layout where `whole` replaces the placements that split classes, and `row` makes those that split rows.
template <typename Row>
Placements layout_like(const CrossEntropyTensors& in, const Placement& whole, const Row& row) {
  Placements result = in.spec().placements();
  for (Placement& p : result) p = p.is_sharded_on(in.class_dim()) ? whole : p.is_sharded() ? row(p) : p;
  return result;
}
// Of one number per row, and of a sum over the rows.
Placements rows_layout(const CrossEntropyTensors& in) {
  return layout_like(in, Replicate(), [](const Placement& p) { return p; });
}
Placements sum_layout(const CrossEntropyTensors& in) {
  return layout_like(in, Replicate(), [](const Placement&) { return Partial(); });
}
Placements whole_layout(const CrossEntropyTensors& in) { return Placements(in.spec().mesh().ndim(), Replicate()); }

SpecPtr spec_like(const CrossEntropyTensors& in, const Placements& placements, c10::IntArrayRef sizes,
                  c10::ScalarType dtype) {
  return Spec::get(in.spec().mesh(), placements, sizes, dtype);
}

size_t num_locals(const CrossEntropyTensors& in) { return meta_for_read(in.self).locals.size(); }

const at::Tensor& local_part(const at::Tensor& t, size_t i) { return meta_for_read(t).locals[i]; }

// What the i-th local rank computes on.
CrossEntropyArguments local_arguments(const CrossEntropyTensors& in, const CrossEntropyCall& call, size_t i) {
  const auto dim = static_cast<size_t>(in.class_dim());
  const LocalLayout layout = in.spec().local_layout(static_cast<int64_t>(i));
  CrossEntropyArguments args{local_part(in.self, i), local_part(in.target, i), {}, call.classes};
  args.part.offset = layout.offsets[dim];
  args.part.size = total_size(layout.dims[dim]);
  if (in.weight.defined()) args.weight = local_part(in.weight, i);
  if (in.self.dim() == 1) {
    args.logits = args.logits.unsqueeze(0);
    args.target = args.target.unsqueeze(0);
  }
  return args;
}

// Of all classes, distributed like the rows; in the order of SummaryNumber.
std::vector<at::Tensor> exchange_summaries(const CrossEntropyTensors& in, const CrossEntropyCall& call) {
  const int numbers = summary_numbers(in.weight.defined(), in.has_probabilities(), call.classes.label_smoothing);
  const c10::ScalarType dtype = widened(in.self.scalar_type());
  RankTensors locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < num_locals(in); ++i) {
      locals.push_back(cross_entropy_part(local_arguments(in, call, i)).t().contiguous());
    }
  }
  const Placements placements = layout_like(in, Shard(1), [](const Placement& p) { return p; });
  const SpecPtr spec = spec_like(in, placements, {in.num_rows(), in.ranks_per_row() * numbers}, dtype);
  SummaryRequest request;
  request.dims = {1};
  request.dtypes.assign(numbers, dtype);
  request.count = [](const LocalLayout&) { return 1; };
  request.summarize = [numbers](const at::Tensor& local, const LocalLayout&, int64_t) {
    std::vector<at::Tensor> columns;
    for (int k = 0; k < numbers; ++k) columns.push_back(local.narrow(1, k, 1));
    return columns;
  };
  Combination combination;
  combination.dtypes = request.dtypes;
  combination.keepdim = false;
  combination.combine = [](const auto& columns, const auto&, const auto&) {
    const at::Tensor max = columns[kMax].amax(0);
    std::vector<at::Tensor> results{max, ((columns[kMax] - max).exp_() * columns[kSum]).sum(0)};
    for (size_t k = kProduct; k < columns.size(); ++k) results.push_back(columns[k].sum(0));
    return results;
  };
  return combine_summaries(make_dtensor(spec, std::move(locals)), request, combination, call.cause("self"));
}

// kTotal or kTargetWeight of each row. If it was not exchanged, it equals the number before, or is 1 but for ignored
// rows.
at::Tensor local_weights(const CrossEntropyTensors& in, const CrossEntropyCall& call,
                         const std::vector<at::Tensor>& summaries, SummaryNumber number, size_t i) {
  const size_t last = std::min<size_t>(number, summaries.size() - 1);
  if (last >= kTotal) return local_part(summaries[last], i);
  return local_arguments(in, call, i).target.ne(call.classes.ignore_index).to(widened(in.self.scalar_type()));
}

// Whether a mean divides by the weights of all targets, a sum over ranks; else by the number of rows.
bool divides_by_weights(const CrossEntropyTensors& in, const CrossEntropyCall& call) {
  return call.reduction == at::Reduction::Mean && !in.has_probabilities();
}

// `pairs`: of each local rank, the sums of its losses and weights. They are reduced in one all-reduce.
void divide_by_weights(const CrossEntropyTensors& in, const CrossEntropyCall& call, RankTensors pairs,
                       CrossEntropyLoss& loss) {
  const c10::ScalarType dtype = widened(in.self.scalar_type());
  at::Tensor pair = make_dtensor(spec_like(in, sum_layout(in), {2}, dtype), std::move(pairs));
  if (in.splits_rows()) pair = redistribute_below_autograd(pair, whole_layout(in), call.cause("reduction"));
  RankTensors means, divisors;
  {
    LocalGuard guard;
    for (const at::Tensor& both : meta_for_read(pair).locals) {
      means.push_back(both.select(0, 0).div(both.select(0, 1)).to(call.result_type));
      divisors.push_back(both.select(0, 1).clone());
    }
  }
  loss.value = make_result(spec_like(in, whole_layout(in), {}, call.result_type), std::move(means));
  loss.divisor = make_dtensor(spec_like(in, whole_layout(in), {}, dtype), std::move(divisors));
}

// A sum of losses, or a gradient of the loss, divided if the loss is a mean.
at::Tensor divided_if_mean(const at::Tensor& t, const CrossEntropyTensors& in, const CrossEntropyCall& call,
                           const at::Tensor& divisor) {
  if (call.reduction != at::Reduction::Mean) return t;
  return divisor.defined() ? t / divisor : t / in.num_rows();
}

// grad_of_rank(i): as in cross_entropy_part_backward().
template <typename F>
at::Tensor logits_gradient_of(const CrossEntropyTensors& in, const CrossEntropyCall& call, const at::Tensor& max,
                              const F& grad_of_rank) {
  RankTensors locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < num_locals(in); ++i) {
      const at::Tensor result =
          cross_entropy_part_backward(grad_of_rank(i), local_part(max, i), local_arguments(in, call, i));
      locals.push_back(in.self.dim() == 1 ? result.squeeze(0) : result);
    }
  }
  return make_result(spec_like(in, in.spec().placements(), in.self.sizes(), in.self.scalar_type()), std::move(locals));
}

}  // namespace

const Spec& CrossEntropyTensors::spec() const { return *spec_of(self); }

int64_t CrossEntropyTensors::ranks_per_row() const {
  int64_t ranks = 1;
  for (int64_t m = 0; m < spec().mesh().ndim(); ++m) {
    if (spec().placements()[m].is_sharded_on(class_dim())) ranks *= spec().mesh().size(m);
  }
  return ranks;
}

bool CrossEntropyTensors::splits_rows() const {
  return std::any_of(spec().placements().begin(), spec().placements().end(),
                     [&](const Placement& p) { return p.is_sharded() && !p.is_sharded_on(class_dim()); });
}

CrossEntropyTensors brought_to_logits(const CrossEntropyTensors& in, const CrossEntropyCall& call) {
  CrossEntropyTensors result = in;
  const Placements of_target = in.has_probabilities() ? in.spec().placements() : rows_layout(in);
  result.target = redistribute_below_autograd(in.target, of_target, call.cause("target"));
  if (in.weight.defined()) {
    const Placements of_classes = layout_like(in, Shard(0), [](const Placement&) { return Replicate(); });
    result.weight = redistribute_below_autograd(in.weight, of_classes, call.cause("weight"));
  }
  return result;
}

CrossEntropyLoss cross_entropy_loss(const CrossEntropyTensors& in, const CrossEntropyCall& call) {
  const std::vector<at::Tensor> summaries = exchange_summaries(in, call);
  const bool each_row = call.reduction == at::Reduction::None;
  RankTensors values, totals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < num_locals(in); ++i) {
      totals.push_back(local_weights(in, call, summaries, kTotal, i));
      const at::Tensor difference = totals[i] * local_part(summaries[kMax], i) - local_part(summaries[kProduct], i);
      const at::Tensor rows = totals[i] * local_part(summaries[kSum], i).log() + difference;
      if (each_row) {
        values.push_back((in.self.dim() == 1 ? rows.squeeze(0) : rows).to(call.result_type));
      } else if (divides_by_weights(in, call)) {
        values.push_back(at::stack({rows.sum(), local_weights(in, call, summaries, kTargetWeight, i).sum()}));
      } else {
        values.push_back(divided_if_mean(rows.sum(), in, call, {}).to(call.result_type));
      }
    }
  }
  CrossEntropyLoss loss;
  loss.max = summaries[kMax];
  loss.sum = summaries[kSum];
  loss.totals =
      make_dtensor(spec_like(in, rows_layout(in), {in.num_rows()}, widened(in.self.scalar_type())), std::move(totals));
  if (divides_by_weights(in, call)) {
    divide_by_weights(in, call, std::move(values), loss);
  } else if (each_row) {
    const auto sizes = in.self.sizes().slice(0, in.self.dim() - 1);
    loss.value = make_result(spec_like(in, rows_layout(in), sizes, call.result_type), std::move(values));
  } else {
    loss.value = make_result(spec_like(in, sum_layout(in), {}, call.result_type), std::move(values));
  }
  return loss;
}

at::Tensor cross_entropy_gradient(const at::Tensor& grad_output, const CrossEntropyTensors& in,
                                  const CrossEntropyLoss& loss, const CrossEntropyCall& call) {
  const bool each_row = call.reduction == at::Reduction::None;
  const at::Tensor grad = redistribute_below_autograd(grad_output, each_row ? rows_layout(in) : whole_layout(in),
                                                      call.cause("grad_output"));
  return logits_gradient_of(in, call, loss.max, [&](size_t i) {
    const at::Tensor& totals = local_part(loss.totals, i);
    const at::Tensor divisor = loss.divisor.defined() ? local_part(loss.divisor, i) : loss.divisor;
    const at::Tensor g =
        divided_if_mean(local_part(grad, i).to(totals.scalar_type()), in, call, divisor).expand(totals.sizes());
    return at::stack({g * totals / local_part(loss.sum, i), -g});
  });
}

at::Tensor differentiable_cross_entropy_gradient(const at::Tensor& grad_output, const CrossEntropyTensors& in,
                                                 const CrossEntropyLoss& loss, const CrossEntropyCall& call) {
  const at::Tensor q = logits_gradient_of(in, call, loss.max, [&](size_t i) {
    const at::Tensor zeros = at::zeros_like(local_part(loss.max, i));
    return at::stack({zeros, zeros + 1});
  });
  const auto dtype = loss.totals.scalar_type();
  const bool has_rows = in.self.dim() == 2;
  at::Tensor grad = divided_if_mean(grad_output.to(dtype), in, call, loss.divisor);
  if (has_rows && call.reduction == at::Reduction::None) grad = grad.unsqueeze(1);
  const at::Tensor totals = has_rows ? loss.totals.unsqueeze(1) : loss.totals;
  // Not softmax(), which moves short rows, also in a LossParallel.
  at::Tensor result = grad * (at::log_softmax(in.self, in.class_dim(), dtype).exp() * totals - q);
  if (!in.has_probabilities()) {  // ignored rows get 0, also where they make the divisor 0
    const at::Tensor ignored = in.target.eq(call.classes.ignore_index);
    result = result.masked_fill(has_rows ? ignored.unsqueeze(1) : ignored, 0);
  }
  return result.to(in.self.scalar_type());
}

}  // namespace dtensor::internal
