// Registers dtensor::cross_entropy_part and its gradient (cross_entropy_part.h).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/loss/cross_entropy_part.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

CrossEntropyArguments checked(const char* op, const at::Tensor& logits, const at::Tensor& target,
                              const OptionalTensor& weight, const ClassPart& part) {
  TORCH_CHECK_VALUE(logits.dim() == 2, op, ": 'logits' must be [rows, classes of this rank], they have sizes ",
                    logits.sizes());
  CrossEntropyArguments args{logits, target, weight.value_or(at::Tensor()), part};
  args.part.size = logits.size(1);
  TORCH_CHECK_VALUE(part.offset >= 0 && part.offset + args.part.size <= part.num_classes, op, ": classes [",
                    part.offset, ", ", part.offset + args.part.size, ") are not all within the ", part.num_classes,
                    " classes (arguments offset, num_classes)");
  TORCH_CHECK_NOT_IMPLEMENTED(has_cross_entropy_kernel(logits.device(), logits.scalar_type()), op,
                              ": 'logits' must be float, double, half or bfloat16 on the CPU or CUDA, they are ",
                              logits.scalar_type(), " on ", logits.device());
  const bool indices = target.scalar_type() == at::kLong;
  TORCH_CHECK_VALUE(indices ? target.dim() == 1 && target.size(0) == logits.size(0)
                            : target.sizes() == logits.sizes() && target.scalar_type() == logits.scalar_type(),
                    op,
                    ": 'target' must have one int64 per row, or probabilities of the logits' sizes and dtype; it has ",
                    target.scalar_type(), " of sizes ", target.sizes(), " for logits of sizes ", logits.sizes());
  TORCH_CHECK_VALUE(!args.weight.defined() || (args.weight.dim() == 1 && args.weight.size(0) == logits.size(1) &&
                                               args.weight.is_floating_point()),
                    op, ": 'weight' must have one floating-point number per class of this rank, ", logits.size(1));
  TORCH_CHECK_VALUE(
      target.device() == logits.device() && (!args.weight.defined() || args.weight.device() == logits.device()), op,
      ": 'target' and 'weight' must be on the device of 'logits', ", logits.device());
  TORCH_CHECK_VALUE(part.label_smoothing >= 0 && part.label_smoothing <= 1, op,
                    ": 'label_smoothing' must be between 0.0 and 1.0. Got: ", part.label_smoothing);
  return args;
}

at::Tensor summaries(const at::Tensor& logits, const at::Tensor& target, const OptionalTensor& weight, int64_t offset,
                     int64_t num_classes, int64_t ignore_index, double label_smoothing) {
  const CrossEntropyArguments args =
      checked("cross_entropy_part", logits, target, weight, {offset, 0, num_classes, ignore_index, label_smoothing});
  return cross_entropy_part(args);
}

at::Tensor logits_gradient(const at::Tensor& grad, const at::Tensor& max, const at::Tensor& logits,
                           const at::Tensor& target, const OptionalTensor& weight, int64_t offset, int64_t num_classes,
                           int64_t ignore_index, double label_smoothing) {
  constexpr const char* kOp = "cross_entropy_part_backward";
  const CrossEntropyArguments args =
      checked(kOp, logits, target, weight, {offset, 0, num_classes, ignore_index, label_smoothing});
  const auto dtype = widened(logits.scalar_type());
  TORCH_CHECK_VALUE(grad.sizes() == at::IntArrayRef({2, logits.size(0)}) && grad.scalar_type() == dtype, kOp,
                    ": 'grad' must be ", dtype, " of sizes [2, ", logits.size(0), "], it is ", grad.scalar_type(),
                    " of sizes ", grad.sizes());
  TORCH_CHECK_VALUE(max.sizes() == logits.sizes().slice(0, 1) && max.scalar_type() == dtype, kOp, ": 'max' must be ",
                    dtype, " of sizes [", logits.size(0), "], it is ", max.scalar_type(), " of sizes ", max.sizes());
  return cross_entropy_part_backward(grad, max, args);
}

at::Tensor call_summaries(const CrossEntropyArguments& args) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("dtensor::cross_entropy_part", "").typed<decltype(summaries)>();
  const OptionalTensor weight = args.weight.defined() ? OptionalTensor(args.weight) : std::nullopt;
  return op.call(args.logits, args.target, weight, args.part.offset, args.part.num_classes, args.part.ignore_index,
                 args.part.label_smoothing);
}

at::Tensor call_gradient(const at::Tensor& grad, const at::Tensor& max, const CrossEntropyArguments& args) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtensor::cross_entropy_part_backward", "")
                             .typed<decltype(logits_gradient)>();
  const OptionalTensor weight = args.weight.defined() ? OptionalTensor(args.weight) : std::nullopt;
  return op.call(grad, max, args.logits, args.target, weight, args.part.offset, args.part.num_classes,
                 args.part.ignore_index, args.part.label_smoothing);
}

// The loss by way of its summaries: only kSum and kProduct have derivatives, and only by the logits.
struct SummariesFn : torch::autograd::Function<SummariesFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target,
                            const OptionalTensor& given_weight, int64_t offset, int64_t num_classes,
                            int64_t ignore_index, double label_smoothing) {
    const at::Tensor weight = given_weight.value_or(at::Tensor());
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor result =
        call_summaries({logits, target, weight, {offset, 0, num_classes, ignore_index, label_smoothing}});
    ctx->save_for_backward({logits, target, weight, result});
    ctx->saved_data["part"] = std::vector<int64_t>{offset, num_classes, ignore_index};
    ctx->saved_data["label_smoothing"] = label_smoothing;
    return result;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> part = ctx->saved_data["part"].toIntVector();
    const CrossEntropyArguments args{
        saved[0],
        saved[1],
        saved[2],
        {part[0], saved[0].size(1), part[1], part[2], ctx->saved_data["label_smoothing"].toDouble()}};
    const at::Tensor grad = grads[0].narrow(0, kSum, 2), max = saved[3].detach()[kMax];
    return {at::GradMode::is_enabled() ? differentiable_cross_entropy_part_backward(grad, max, args)
                                       : call_gradient(grad, max, args),
            {},
            {},
            {},
            {},
            {},
            {}};
  }
};

at::Tensor summaries_with_autograd(const at::Tensor& logits, const at::Tensor& target, const OptionalTensor& weight,
                                   int64_t offset, int64_t num_classes, int64_t ignore_index, double label_smoothing) {
  return SummariesFn::apply(logits, target, weight, offset, num_classes, ignore_index, label_smoothing);
}

at::Tensor gradient_with_autograd(const at::Tensor& grad, const at::Tensor& max, const at::Tensor& logits,
                                  const at::Tensor& target, const OptionalTensor& weight, int64_t offset,
                                  int64_t num_classes, int64_t ignore_index, double label_smoothing) {
  const ClassPart part{offset, 0, num_classes, ignore_index, label_smoothing};
  const auto needs = [](const at::Tensor& t) { return t.requires_grad(); };
  if (at::GradMode::is_enabled() && (needs(grad) || needs(logits))) {
    return differentiable_cross_entropy_part_backward(
        grad, max, checked("cross_entropy_part_backward", logits, target, weight, part));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_gradient(grad, max, {logits, target, weight.value_or(at::Tensor()), part});
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_FRAGMENT(dtensor, m) {
  m.def(
      "cross_entropy_part(Tensor logits, Tensor target, Tensor? weight, int offset, int num_classes, "
      "int ignore_index=-100, float label_smoothing=0.0) -> Tensor");
  m.def(
      "cross_entropy_part_backward(Tensor grad, Tensor max, Tensor logits, Tensor target, Tensor? weight, "
      "int offset, int num_classes, int ignore_index=-100, float label_smoothing=0.0) -> Tensor");
}

// For CPU, CUDA, and tensors without data.
TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy_part", &dtensor::internal::summaries);
  m.impl("cross_entropy_part_backward", &dtensor::internal::logits_gradient);
}

TORCH_LIBRARY_IMPL(dtensor, Autograd, m) {
  m.impl("cross_entropy_part", &dtensor::internal::summaries_with_autograd);
  m.impl("cross_entropy_part_backward", &dtensor::internal::gradient_with_autograd);
}
