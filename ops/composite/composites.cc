// Replacements for composite operators whose ATen code accesses memory directly, which distributed tensors do not have,
// or writes to slices of a replicated result. They run above autograd, see add_handler().
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/plain_range.h"
#include "ops/reduction/split_rows.h"
#include "ops/support/arguments.h"
#include "ops/support/plain_numbers.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Splits at the indices, or into the number of sections, that a tensor holds.
void tensor_split(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  args.set("tensor_indices_or_sections",
           plain_numbers(args.tensor("tensor_indices_or_sections"), op, "tensor_indices_or_sections"));
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
}

// On the CPU without gradients, ATen uses another kernel, whose result is row-major.
void max_pool1d(const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor& self = torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor();
  if (self.is_cpu() && !(self.requires_grad() && at::GradMode::is_enabled())) self = self.contiguous();
  const auto with_indices = c10::Dispatcher::singleton().findSchemaOrThrow("aten::max_pool1d_with_indices", "");
  TORCH_INTERNAL_ASSERT(with_indices.schema().arguments().size() == op.schema().arguments().size());
  with_indices.callBoxed(stack);
  torch::jit::drop(stack, 1);
}

// The powers of each element, from N - 1 or from 0.
void vander(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  at::Tensor x = args.tensor("x");
  TORCH_CHECK(x.dim() == 1, "x must be a one-dimensional tensor.");
  const int64_t n = args["N"].isNone() ? x.size(0) : args["N"].toInt();
  TORCH_CHECK(n >= 0, "N must be non-negative.");
  const bool increasing = args["increasing"].toBool();
  torch::jit::drop(stack, op.schema().arguments().size());
  // All ones do not depend on x, so that there is no gradient, as with ATen.
  if (n <= 1) x = x.detach();
  const auto dtype = c10::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? at::kLong : x.scalar_type();
  const at::Tensor column = x.to(dtype).unsqueeze(1);
  at::Tensor result = at::ones_like(n > 0 ? column : column.slice(1, 0, 0));
  if (n > 1) result = at::cat({result, column.expand({x.size(0), n - 1}).cumprod(1)}, 1);
  stack.emplace_back(increasing ? result : result.flip({1}));
}

// Padded and stacked, sequences keep their layouts. ATen's code writes them to slices of a replicated tensor, which
// gathers them one by one.
void pad_sequence(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const std::vector<at::Tensor> sequences = args["sequences"].toTensorVector();
  const std::string side = args["padding_side"].toStringRef();
  bool is_usual = side == "left" || side == "right";
  int64_t longest = 0;
  for (const at::Tensor& t : sequences) {
    is_usual = is_usual && is_dtensor(t) && t.dim() > 0;
    longest = is_usual ? std::max(longest, t.size(0)) : 0;
  }
  if (!is_usual) return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  std::vector<at::Tensor> padded;
  for (const at::Tensor& sequence : sequences) {
    std::vector<int64_t> sizes = sequences[0].sizes().vec();
    sizes[0] = sequence.size(0);
    at::Tensor t = sequence.to(sequences[0].scalar_type());
    if (t.sizes() != sizes) t = t.expand(sizes);
    std::vector<int64_t> pad(2 * sizes.size(), 0);  // the last two numbers are of the first dim
    pad[pad.size() - (side == "left" ? 2 : 1)] = longest - sizes[0];
    padded.push_back(sizes[0] == longest ? t : at::constant_pad_nd(t, pad, args.number("padding_value")));
  }
  const int64_t batch_dim = args["batch_first"].toBool() ? 0 : 1;
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(at::stack(padded, batch_dim).contiguous());
}

// Aliasing of real and imaginary part is tracked.
void real_or_imag(const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor self = torch::jit::peek(stack, 0, 1).toTensor();
  const bool conjugated = conj_neg_bits(meta_without_sync(self).locals).conj;
  if (conjugated) torch::jit::peek(stack, 0, 1) = at::_conj(self);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  if (conjugated && op.schema().name() == "aten::imag") stack.back() = at::_neg_view(stack.back().toTensor());
}

// Copies a conjugated or negated tensor.
void resolve(const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  const bool conj = op.schema().name() == "aten::resolve_conj";
  const ConjNegBits bits = conj_neg_bits(meta_without_sync(self).locals);
  const bool lazy = conj ? bits.conj : bits.neg;
  stack.emplace_back(lazy ? at::clone(self) : self);
}

// Each rank checks its own indices, as in embedding lookups; ATen's code checks the global minimum and maximum. Without
// a number of classes, all ranks get both in one exchange.
void one_hot(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  at::Tensor self = args.tensor("self");
  int64_t classes = args["num_classes"].toInt();
  const bool counts = classes == -1 && self.numel() > 0;
  if ((classes <= 0 && !counts) || self.scalar_type() != at::kLong)
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  at::Tensor range;
  if (counts) {
    range = plain_range(self, 0, op);
  } else if (spec_of(self)->has_partial()) {
    self = reduced(self, op, "self");
  }
  const RankTensors parts = meta_for_read(self).locals;
  at::Tensor numbers;
  {
    LocalGuard guard;
    if (counts) {
      TORCH_CHECK(range[0][0].item<int64_t>() >= 0, "Class values must be non-negative.");
      classes = range[0][1].item<int64_t>() + 1;
    }
    numbers = at::arange(classes, self.options());
    for (const at::Tensor& part : parts) {
      // On a GPU ATen does not check, either: it would have to synchronize.
      if (counts || !part.is_cpu() || part.numel() == 0) continue;
      TORCH_CHECK(part.min().item<int64_t>() >= 0, "Class values must be non-negative.");
      TORCH_CHECK(part.max().item<int64_t>() < classes, "Class values must be smaller than num_classes.");
    }
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  const at::Tensor hot = self.unsqueeze(-1).eq(replicate_plain(numbers, spec_of(self)->mesh()));
  stack.emplace_back(hot.to(at::kLong).contiguous());
}

// Throws for gradients that are sparse.
void refuse_sparse(const c10::OperatorHandle& op, Stack&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": gives a tensor of layout Sparse, which cannot be distributed. Call embedding() with "
                              "sparse = false, and gather() with sparse_grad = false.");
}

// Throws for nested tensors.
void refuse_nested(const c10::OperatorHandle& op, Stack&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(), ": works on nested tensors, which cannot be distributed. ",
                              kInPlaceOfNested);
}

// torch.nn.TransformerEncoder asks whether it may drop the padding of sequences: if not, it computes with the padding.
void no_nested_of_mask(const c10::OperatorHandle& op, Stack& stack) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(false);
}

}  // namespace

const RuleFamily composites_handlers("composites", [](RuleRegistry& registry) {
  for (const char* op : {"aten::embedding_sparse_backward", "aten::_gather_sparse_backward"})
    registry.add_handler(op, refuse_sparse);
  for (const char* op : {"aten::_nested_tensor_from_tensor_list", "aten::_nested_tensor_from_mask",
                         "aten::_nested_from_padded", "aten::_nested_from_padded_and_nested_example",
                         "aten::_nested_view_from_buffer", "aten::_nested_view_from_jagged"})
    registry.add_handler(op, refuse_nested);
  registry.add_handler("aten::_nested_tensor_from_mask_left_aligned", no_nested_of_mask);
  registry.add_handler("aten::tensor_split.tensor_indices_or_sections", tensor_split);
  registry.add_handler("aten::max_pool1d", max_pool1d);
  registry.add_handler("aten::vander", vander);
  registry.add_handler("aten::one_hot", one_hot);
  registry.add_handler("aten::pad_sequence", pad_sequence);
  for (const char* op : {"aten::real", "aten::imag"}) registry.add_handler(op, real_or_imag);
  for (const char* op : {"aten::resolve_conj", "aten::resolve_neg"}) registry.add_handler(op, resolve);
});

}  // namespace dtensor::internal
