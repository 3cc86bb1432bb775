// Registers dtensor::masked_embedding and its gradient (masked_embedding.h).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/embedding/kernel_arguments.h"
#include "ops/embedding/masked_embedding.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;

at::Tensor look_up_part(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows, int64_t) {
  TORCH_CHECK_VALUE(part.dim() == 2, "masked_embedding: 'part' must be [rows, features], it has sizes ", part.sizes());
  check_rows("masked_embedding", offset, part.size(0), num_rows);
  if (!part.is_meta()) return fused_masked_embedding(part, ids, offset, num_rows);
  c10::SymDimVector sizes(ids.sym_sizes().begin(), ids.sym_sizes().end());
  sizes.push_back(part.sym_size(1));
  return part.new_empty_symint(sizes);
}

at::Tensor part_gradient(const at::Tensor& grad, const at::Tensor& ids, int64_t offset, int64_t num_own_rows,
                         int64_t num_rows, int64_t padding_idx) {
  TORCH_CHECK_VALUE(grad.dim() == ids.dim() + 1 && grad.sym_sizes().slice(0, ids.dim()) == ids.sym_sizes(),
                    "masked_embedding_backward: 'grad' must have the sizes of 'ids' and one more dim, it has ",
                    grad.sym_sizes(), " for ids of ", ids.sym_sizes());
  check_rows("masked_embedding_backward", offset, num_own_rows, num_rows);
  if (grad.is_meta()) return grad.new_empty_symint({num_own_rows, grad.sym_size(-1)});
  return fused_masked_embedding_backward(grad, ids, offset, num_own_rows, num_rows, padding_idx);
}

at::Tensor call_forward(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows,
                        int64_t padding_idx) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("dtensor::masked_embedding", "").typed<decltype(look_up_part)>();
  return op.call(part, ids, offset, num_rows, padding_idx);
}

at::Tensor call_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset, int64_t num_own_rows,
                         int64_t num_rows, int64_t padding_idx) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtensor::masked_embedding_backward", "")
                             .typed<decltype(part_gradient)>();
  return op.call(grad, ids, offset, num_own_rows, num_rows, padding_idx);
}

void save(AutogradContext* ctx, const at::Tensor& ids, int64_t offset, int64_t num_rows, int64_t padding_idx) {
  ctx->save_for_backward({ids});
  ctx->saved_data["offset"] = offset;
  ctx->saved_data["num_rows"] = num_rows;
  ctx->saved_data["padding_idx"] = padding_idx;
}

struct MaskedEmbeddingFn : torch::autograd::Function<MaskedEmbeddingFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& part, const at::Tensor& ids, int64_t offset,
                            int64_t num_rows, int64_t padding_idx) {
    save(ctx, ids, offset, num_rows, padding_idx);
    ctx->saved_data["num_own_rows"] = part.size(0);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_forward(part, ids, offset, num_rows, padding_idx);
  }
  static torch::autograd::variable_list backward(AutogradContext* ctx, torch::autograd::variable_list grads) {
    auto& data = ctx->saved_data;
    return {call_backward(grads[0], ctx->get_saved_variables()[0], data["offset"].toInt(), data["num_own_rows"].toInt(),
                          data["num_rows"].toInt(), data["padding_idx"].toInt()),
            {},
            {},
            {},
            {}};
  }
};

struct MaskedEmbeddingBackwardFn : torch::autograd::Function<MaskedEmbeddingBackwardFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                            int64_t num_own_rows, int64_t num_rows, int64_t padding_idx) {
    save(ctx, ids, offset, num_rows, padding_idx);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(grad, ids, offset, num_own_rows, num_rows, padding_idx);
  }
  // Linear in grad: where a position's gradient went, its own comes from.
  static torch::autograd::variable_list backward(AutogradContext* ctx, torch::autograd::variable_list grads) {
    auto& data = ctx->saved_data;
    const at::Tensor ids = ctx->get_saved_variables()[0];
    const int64_t padding_idx = data["padding_idx"].toInt();
    at::Tensor grad = call_forward(grads[0], ids, data["offset"].toInt(), data["num_rows"].toInt(), padding_idx);
    if (padding_idx >= 0) grad = grad.masked_fill(ids.eq(padding_idx).unsqueeze(-1), 0);
    return {grad, {}, {}, {}, {}, {}};
  }
};

at::Tensor with_autograd(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows,
                         int64_t padding_idx) {
  return MaskedEmbeddingFn::apply(part, ids, offset, num_rows, padding_idx);
}

at::Tensor gradient_with_autograd(const at::Tensor& grad, const at::Tensor& ids, int64_t offset, int64_t num_own_rows,
                                  int64_t num_rows, int64_t padding_idx) {
  return MaskedEmbeddingBackwardFn::apply(grad, ids, offset, num_own_rows, num_rows, padding_idx);
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_FRAGMENT(dtensor, m) {
  m.def("masked_embedding(Tensor part, Tensor ids, int offset, int num_rows, int padding_idx=-1) -> Tensor");
  m.def(
      "masked_embedding_backward(Tensor grad, Tensor ids, int offset, int num_own_rows, int num_rows, "
      "int padding_idx=-1) -> Tensor");
}

// For CPU, CUDA, tensors without data, and all other devices.
TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  m.impl("masked_embedding", &dtensor::internal::look_up_part);
  m.impl("masked_embedding_backward", &dtensor::internal::part_gradient);
}

TORCH_LIBRARY_IMPL(dtensor, Autograd, m) {
  m.impl("masked_embedding", &dtensor::internal::with_autograd);
  m.impl("masked_embedding_backward", &dtensor::internal::gradient_with_autograd);
}
