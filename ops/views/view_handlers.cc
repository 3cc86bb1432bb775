// Operators that change a tensor's own metadata, and those that address its memory directly: as_strided, and views as
// another dtype.
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/view_window.h"
#include "dtensor/views/copied_view.h"
#include "ops/support/arguments.h"
#include "ops/support/movement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// t_() is t(), and self becomes the result.
void change_self(const c10::OperatorHandle& op, Stack& stack) {
  std::string name = op.schema().name();
  name.pop_back();
  const std::string overload = name == "aten::transpose" ? "int" : op.schema().overload_name();
  const auto view = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const size_t num_args = op.schema().arguments().size();
  const at::Tensor self = torch::jit::peek(stack, 0, num_args).toTensor();
  view.callBoxed(stack);
  const at::Tensor viewed = torch::jit::pop(stack).toTensor();
  share_contents(self, viewed);
  stack.emplace_back(self);
}

void return_self(const c10::OperatorHandle&, Stack&) {}

struct Owner {
  at::Tensor tensor;
  ConjNegBits flips;  // between its values and those of the view
};

// The tensor whose memory contains `t` on every rank, or the base of a copied view. (Copies on some ranks only do not
// count: all ranks must move the same.)
Owner owner_of(const at::Tensor& t) {
  Owner owner{t, {}};
  ConjNegBits flips;
  at::Tensor same_memory = t;
  for (const ViewOrigin* origin : origins_of(t)) {
    if (origin->base.scalar_type() != t.scalar_type()) break;
    const std::string& op = origin->op.schema().name();
    flips = flips ^ conj_neg_bits(meta_without_sync(same_memory).locals) ^ conj_neg_bits(origin->locals) ^
            ConjNegBits { op == "aten::_conj", op == "aten::_neg_view" };
    same_memory = origin->base;
    if (origin->moved) owner = {origin->base, flips};
  }
  return owner;
}

// Whether every rank has all of it, in the memory layout of a single device.
bool lies_as_global(const at::Tensor& t) {
  const DTensorMeta& meta = meta_for_write(t);
  bool same = meta.spec->is_replicated();
  for (const at::Tensor& local : meta.locals) same = same && local.strides() == t.strides();
  return same;
}

// Gathers `t` to that layout. In an abstract world this is not possible.
RankTensors gathered(const at::Tensor& t, const std::string& op) {
  const Placements whole(t.defined() ? spec_of(t)->placements().size() : 0, Replicate());
  const at::Tensor all = redistribute_below_autograd(t, whole, {op, "self", module_of_call(t), /*implicit=*/true});
  LocalGuard guard;
  RankTensors locals;
  for (const at::Tensor& local : meta_for_read(all).locals) {
    locals.push_back(at::empty_strided(t.sizes(), t.strides(), local.options()));
    copy_values(locals.back(), local);
  }
  return locals;
}

// The number of elements in memory from the first to the last.
int64_t extent(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t result = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    result += (sizes[d] - 1) * strides[d];
  }
  return result;
}

// Whether all elements that such strides address from `begin` on belong to `base`. Between elements that are not
// adjacent lie those of other tensors.
bool has_all_of(const at::Tensor& base, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t begin) {
  const int64_t seen = extent(size, stride), there = extent(base.sizes(), base.strides());
  if (seen == 0) return true;
  if (begin < 0 || begin + seen > there) return false;
  if (base.is_non_overlapping_and_dense()) return true;
  LocalGuard guard;
  const at::Tensor held = at::zeros({there}, at::kBool);
  copy_values(at::as_strided(held, base.sizes(), base.strides()), at::ones({}, at::kBool).expand(base.sizes()));
  return at::as_strided(held, size, stride, begin).all().item<bool>();
}

// Whether strides differ only in dims without a step.
bool same_steps(c10::IntArrayRef size, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t d = 0; d < size.size(); ++d) {
    if (size[d] > 1 && a[d] != b[d]) return false;
  }
  return true;
}

// Strides address the memory that the tensor would have on one device. If no rank has that memory it is gathered.
void as_strided(const c10::OperatorHandle& op, Stack& stack) {
  std::vector<c10::IValue> args(torch::jit::last(stack, 4).vec());
  torch::jit::drop(stack, 4);
  const at::Tensor self = args[0].toTensor();
  const std::vector<int64_t> size = args[1].toIntVector(), stride = args[2].toIntVector();
  const int64_t offset = args[3].toOptional<int64_t>().value_or(self.storage_offset());
  if (self.sizes() == size && self.strides() == stride && offset == self.storage_offset()) {
    stack.emplace_back(at::alias(self));
    return;
  }
  if (self.sizes() == size && offset == self.storage_offset() && same_steps(size, self.strides(), stride)) {
    const DTensorMeta& meta = meta_for_write(self);
    const TensorMeta named{Shape(size.begin(), size.end()), Shape(stride.begin(), stride.end()), self.scalar_type()};
    stack.emplace_back(
        make_view(Spec::get(meta.spec->mesh(), meta.spec->placements(), named), meta.locals, self, offset));
    return;
  }
  const auto [base, flips] = owner_of(self);
  const SpecPtr& spec = spec_of(base);
  // An empty tensor may be a part of larger memory, but a copy, of which such a view may be taken, has no memory around
  // it.
  const bool moved = !lies_as_global(base) || base.numel() == 0 || meta_without_sync(base).storage->observer;
  const int64_t begin = offset - base.storage_offset();
  TORCH_CHECK(!moved || has_all_of(base, size, stride, begin), op.schema().name(), ": sizes ", size, ", strides ",
              stride, " and offset ", offset, " reach beyond the tensor laid out as ", to_string(spec->placements()),
              ", whose parts have other memory around "
              "them than the whole tensor would. Take it of the tensor that this one is a view of.");
  const RankTensors whole = moved ? gathered(base, op.schema().name()) : meta_for_write(base).locals;
  RankTensors locals;
  {
    LocalGuard guard;
    for (const at::Tensor& local : whole)
      locals.push_back(
          at::as_strided(local, size, stride, local.storage_offset() + (extent(size, stride) == 0 ? 0 : begin)));
  }
  const TensorMeta result{Shape(size.begin(), size.end()), Shape(stride.begin(), stride.end()), self.scalar_type()};
  const Placements placements(spec->placements().size(), Replicate());
  args[0] = base;
  args[3] = offset;
  const at::Tensor view = make_view_of({op, args, 0, 0, placements}, Spec::get(spec->mesh(), placements, result),
                                       std::move(locals), begin, moved);
  stack.emplace_back(with_conj_neg(view, flips));
}

// From a slice (the first argument) back to its base, which has the second one's sizes and strides.
void slice_inverse(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor slice = args.tensor("self"), whole = args.tensor("src");
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(at::as_strided(slice, whole.sizes(), whole.strides(), whole.storage_offset()));
}

bool is_cut_along(const at::Tensor& t, int64_t dim) {
  const auto& placements = spec_of(t)->placements();
  return std::any_of(placements.begin(), placements.end(),
                     [&](const Placement& p) { return p.is_sharded() && p.dim() == dim; });
}

// view.dtype(self, dtype): if the last dim is split, and elements become smaller or larger, the view works on an extra
// dim of the elements that make up one large element. view_copy.dtype copies the result.
template <bool kCopy>
void view_dtype(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dtype = args["dtype"].toScalarType();
  const auto from = static_cast<int64_t>(self.element_size()), to = static_cast<int64_t>(c10::elementSize(dtype));
  if (from == to || self.dim() == 0 || !self.is_contiguous() || !is_cut_along(self, self.dim() - 1) ||
      self.size(-1) * from % to != 0)
    return dispatch_by_rule(op, stack);
  auto sizes = self.sizes().vec();
  at::Tensor result;
  if (to < from) {
    sizes.back() *= from / to;
    result = self.unsqueeze(-1).view(dtype).view(sizes);
  } else {
    sizes.back() = sizes.back() * from / to;
    sizes.push_back(to / from);
    const at::Tensor groups = self.view(sizes);
    if (is_cut_along(groups, groups.dim() - 1)) return dispatch_by_rule(op, stack);  // within an element
    result = groups.view(dtype).squeeze(-1);
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(kCopy ? result.clone(at::MemoryFormat::Contiguous) : std::move(result));
}

}  // namespace

const RuleFamily view_handlers("view_handlers", [](RuleRegistry& registry) {
  for (const char* op : {"aten::t_", "aten::transpose_", "aten::squeeze_", "aten::unsqueeze_", "aten::as_strided_"})
    registry.add_handler(op, change_self);
  registry.add_handler("aten::detach_", return_self);
  registry.add_handler("aten::as_strided", as_strided);
  registry.add_handler("aten::slice_inverse", slice_inverse);
  registry.add_handler("aten::view.dtype", view_dtype<false>);
  registry.add_handler("aten::view_copy.dtype", view_dtype<true>);
});

}  // namespace dtensor::internal
