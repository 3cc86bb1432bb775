// index_select by a plain permutation: the order in which LibTorch's pack_padded_sequence(enforce_sorted = false) sorts
// a batch by its lengths, and the way back. Like the lengths it is a plain tensor with the same values on every rank.
// If the dim is sharded, its layout stays, and each rank fetches the rows that it lacks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/index_select.h>
#include <c10/util/hash.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/support/arguments.h"
#include "placement/placement.h"
#include "placement/valid_dim.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Order = std::vector<int64_t>;

bool is_plain_index(const at::Tensor& index) {
  return !is_dtensor(index) && !index.is_meta() && index.dim() == 1 && index.layout() == c10::kStrided &&
         (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt);
}

// nullopt: not a permutation of n indices.
std::optional<Order> permutation_of(const at::Tensor& index, int64_t n) {
  if (!is_plain_index(index) || index.numel() != n) return std::nullopt;
  LocalGuard guard;
  const at::Tensor numbers = index.detach().to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = numbers.const_data_ptr<int64_t>();
  Order order(first, first + n);
  std::vector<bool> seen(order.size(), false);
  for (const int64_t i : order) {
    if (i < 0 || i >= n || seen[i]) return std::nullopt;
    seen[i] = true;
  }
  return order;
}

IndexMap map_of(const Order& order) {
  IndexMap map{static_cast<int64_t>(order.size()), {}};
  for (size_t place = 0; place < order.size(); ++place) {
    const bool goes_on =
        !map.stretches.empty() && map.stretches.back().source + map.stretches.back().size == order[place];
    if (goes_on) {
      ++map.stretches.back().size;
    } else {
      map.stretches.push_back({static_cast<int64_t>(place), 1, order[place]});
    }
  }
  return map;
}

// index_select(self, dim, index).
void index_select(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), index = args.tensor("index");
  const auto valid = valid_dim(args["dim"].toInt(), self.dim());
  if (!is_dtensor(self) || is_dtensor(index) || !valid) return dispatch_by_rule(op, stack);
  const int64_t dim = *valid;
  const auto order = permutation_of(index, self.size(dim));
  if (!order) return dispatch_by_rule(op, stack);
  const SpecPtr source = spec_of(self);
  args.set("index", replicate_plain(index, source->mesh()));
  if (args.out().defined() || self.numel() == 0 || cutting_mesh_dims(*source, {dim}).empty())
    return dispatch_by_rule(op, stack);
  const Shape& sizes = source->sizes();
  const SpecPtr result = Spec::get(source->mesh(), as_addends(source->placements()),
                                   at::IntArrayRef(sizes.data(), sizes.size()), source->dtype());
  const auto plan = make_halo_plan({source, result, {{dim, map_of(*order), {}}}});
  if (!plan || plan->peak_bytes > current_dispatch_scope().hints.limits.max_bytes) return dispatch_by_rule(op, stack);
  CommCause cause = call_cause(op, "self", self);
  // If ranks compare their calls, different permutations are detected.
  absl::StrAppend(&cause.argument, " in order ", absl::Hex(c10::get_hash(*order) & 0xffff, absl::kZeroPad4));
  RankTensors locals = fetch_halos(*plan, meta_for_read(self).locals, 0, cause);
  return_tensors(op, stack, {make_dtensor(result, std::move(locals))});
}

// index_select_backward(grad, self_sizes, dim, index), above autograd: the inverse of a permutation is one, too.
void index_select_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor grad = args.tensor("grad"), index = args.tensor("index");
  const auto sizes = args["self_sizes"].toIntVector();
  const auto dim = valid_dim(args["dim"].toInt(), static_cast<int64_t>(sizes.size()));
  if (!is_dtensor(grad) || !dim || !permutation_of(index, sizes[*dim]))
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  at::Tensor back;
  {
    LocalGuard guard;
    back = at::argsort(index.detach().to(at::kCPU));
  }
  return_tensors(op, stack, {at::index_select(grad, *dim, back)});
}

}  // namespace

const RuleFamily permuted_rows_handlers("permuted_rows", [](RuleRegistry& registry) {
  registry.add_handler("aten::index_select", index_select);
  registry.add_handler("aten::index_select_backward", index_select_backward);
});

}  // namespace dtensor::internal
