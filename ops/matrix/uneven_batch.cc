// linear and matmul where the batch is sharded unevenly.
//
// ATen's code folds the batch dims into one, [batch, length, features] into [batch * length, features]. With three
// samples, two ranks have two and one, and no layout of the folded rows expresses that. Folded as [length, batch,
// features], each rank keeps its rows: the folded dim is then cut in blocks (StridedShard). So the uneven dims go last
// here, and the result is permuted back, locally on each rank.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Order = std::vector<int64_t>;

bool is_uneven(const at::Tensor& t, int64_t d) { return is_dtensor(t) && d >= 0 && spec_of(t)->is_uneven(d); }

// The first `batch` dims in an order in which the uneven ones come last, then the other dims. nullopt: they already do,
// or there are no others; dims of size 1 do not count.
template <typename IsUneven>
std::optional<Order> uneven_last(int64_t batch, int64_t ndim, at::IntArrayRef sizes, IsUneven uneven) {
  Order order;
  bool moves = false, seen = false;
  for (int64_t d = 0; d < batch; ++d) {
    const bool last = uneven(d);
    if (!last) order.push_back(d);
    moves = moves || (seen && !last && sizes[d] > 1);
    seen = seen || last;
  }
  if (!moves) return std::nullopt;
  for (int64_t d = 0; d < batch; ++d) {
    if (uneven(d)) order.push_back(d);
  }
  for (int64_t d = batch; d < ndim; ++d) order.push_back(d);
  return order;
}

Order inverse_of(const Order& order) {
  Order inverse(order.size());
  for (size_t d = 0; d < order.size(); ++d) inverse[order[d]] = static_cast<int64_t>(d);
  return inverse;
}

// t.permute(order), except for the strides of dims of size 1: these are as without a permutation, in the gradient, too.
at::Tensor permuted(const at::Tensor& t, const Order& order, bool contiguous) {
  Order ones, places(order.size(), 0), among_others;
  for (size_t d = 0, place = 0; d < order.size(); ++d) {
    if (t.size(static_cast<int64_t>(d)) == 1) {
      ones.push_back(static_cast<int64_t>(d));
    } else {
      places[d] = static_cast<int64_t>(place++);
    }
  }
  for (const int64_t d : order) {
    if (t.size(d) != 1) among_others.push_back(places[d]);
  }
  at::Tensor result = (ones.empty() ? t : t.squeeze(ones)).permute(among_others);
  if (contiguous) result = result.contiguous();
  for (size_t d = 0; d < order.size(); ++d) {
    if (t.size(order[d]) == 1) result = result.unsqueeze(static_cast<int64_t>(d));
  }
  return result;
}

at::Tensor in_order_again(const at::Tensor& t, const Order& order) {
  return permuted(t, inverse_of(order), /*contiguous=*/true);
}

// linear(input, weight, bias?).
void linear(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  const int64_t ndim = input.dim();
  std::optional<Order> order;
  if (ndim > 2 && weight.dim() == 2 && input.size(-1) == weight.size(1) && input.numel() > 0)
    order = uneven_last(ndim - 1, ndim, input.sizes(), [&](int64_t d) { return is_uneven(input, d); });
  if (!order) return run_without_handler(op, stack);
  const at::Tensor result =
      at::linear(permuted(input, *order, /*contiguous=*/false), weight, args["bias"].toOptional<at::Tensor>());
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(in_order_again(result, *order));
}

// With dims of size 1 in front.
at::Tensor with_dims(at::Tensor t, int64_t ndim) {
  while (t.dim() < ndim) t = t.unsqueeze(0);
  return t;
}

// matmul(self, other): for batches of matrices, each batch dim that is uneven in one of the two; for a batch times one
// matrix or vector, those of the first.
void matmul(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  at::Tensor a = args.tensor("self"), b = args.tensor("other");
  if (args.out().defined() || a.dim() < 3 || b.dim() == 0 || a.numel() == 0 || b.numel() == 0)
    return run_without_handler(op, stack);
  const int64_t ndim = std::max(a.dim(), b.dim()), more_of_a = ndim - a.dim(), more_of_b = ndim - b.dim();
  const bool batches = b.dim() > 2;
  const auto size_at = [](const at::Tensor& t, int64_t d) { return d < 0 ? 1 : t.size(d); };
  Order sizes;
  for (int64_t d = 0; d < ndim; ++d)
    sizes.push_back(std::max(size_at(a, d - more_of_a), batches ? size_at(b, d - more_of_b) : 1));
  const auto order = uneven_last(batches ? ndim - 2 : ndim - 1, ndim, sizes, [&](int64_t d) {
    return is_uneven(a, d - more_of_a) || (batches && is_uneven(b, d - more_of_b));
  });
  if (!order) return run_without_handler(op, stack);
  a = permuted(with_dims(a, ndim), *order, /*contiguous=*/false);
  if (batches) b = permuted(with_dims(b, ndim), *order, /*contiguous=*/false);
  const at::Tensor result = at::matmul(a, b);
  torch::jit::drop(stack, op.schema().arguments().size());
  if (result.dim() == ndim) return stack.push_back(in_order_again(result, *order));
  stack.emplace_back(in_order_again(result, Order(order->begin(), order->end() - 1)));
}

}  // namespace

const RuleFamily uneven_batch_handlers("uneven_batch", [](RuleRegistry& registry) {
  registry.add_handler_of_uneven("aten::linear", linear);
  registry.add_handler_of_uneven("aten::matmul", matmul);
});

}  // namespace dtensor::internal
