// Registers dtensor::masked_embedding_bag and its gradients (masked_embedding_bag.h).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/embedding/kernel_arguments.h"
#include "ops/embedding/masked_embedding_bag.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

TableRows rows_of_part(const char* op, int64_t offset, int64_t size, int64_t num_rows, int64_t padding_idx) {
  check_rows(op, offset, size, num_rows);
  return {offset, size, num_rows, padding_idx};
}

FourTensors pool_part(const at::Tensor& part, const at::Tensor& ids, const at::Tensor& offsets, int64_t offset,
                      int64_t num_rows, int64_t mode, const OptionalTensor& per_sample_weights,
                      bool include_last_offset, int64_t padding_idx) {
  const Bags bags{ids, offsets, per_sample_weights.value_or(at::Tensor()), mode, include_last_offset};
  TORCH_CHECK_VALUE(part.dim() == 2 && ids.dim() == 1 && offsets.dim() == 1,
                    "masked_embedding_bag: 'part' must be [rows, features], 'ids' and 'offsets' 1-D; they have sizes ",
                    part.sizes(), ", ", ids.sizes(), " and ", offsets.sizes());
  TORCH_CHECK_VALUE(mode >= kBagSum && mode <= kBagMax, "masked_embedding_bag: 'mode' must be 0 (sum), 1 (mean) or 2 ",
                    "(max), it is ", mode);
  TORCH_CHECK_VALUE(bags.size() >= 0, "masked_embedding_bag: with include_last_offset 'offsets' must not be empty");
  TORCH_CHECK_VALUE(
      !bags.weights.defined() ||
          (mode == kBagSum && bags.weights.sizes() == ids.sizes() && bags.weights.scalar_type() == part.scalar_type()),
      "masked_embedding_bag: 'per_sample_weights' must be one per id, of the dtype of 'part', and 'mode' 0");
  const TableRows rows = rows_of_part("masked_embedding_bag", offset, part.size(0), num_rows, padding_idx);
  if (!part.is_meta()) {
    BagResults r = fused_masked_embedding_bag(part, bags, rows);
    return {r.result, r.bag_of_id, r.bag_size, r.max_ids};
  }
  const auto index = ids.options().dtype(c10::promoteTypes(ids.scalar_type(), offsets.scalar_type()));
  const at::Tensor result = part.new_empty({bags.size(), part.size(1)});
  return {result, ids.new_empty(ids.sizes(), index), ids.new_empty({bags.size()}, index),
          mode == kBagMax ? ids.new_empty(result.sizes(), index) : ids.new_empty({0}, index)};
}

at::Tensor part_gradient_of_bags(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& bag_of_id,
                                 const at::Tensor& bag_size, const at::Tensor& max_ids, int64_t offset,
                                 int64_t num_own_rows, int64_t num_rows, int64_t mode,
                                 const OptionalTensor& per_sample_weights, int64_t padding_idx) {
  TORCH_CHECK_VALUE(grad.dim() == 2 && ids.dim() == 1 && bag_of_id.sizes() == ids.sizes(),
                    "masked_embedding_bag_backward: 'grad' must be [bags, features], 'bag_of_id' as large as 'ids'; ",
                    "they have sizes ", grad.sizes(), ", ", bag_of_id.sizes(), " and ", ids.sizes());
  const TableRows rows = rows_of_part("masked_embedding_bag_backward", offset, num_own_rows, num_rows, padding_idx);
  if (grad.is_meta()) return grad.new_empty({num_own_rows, grad.size(1)});
  return fused_masked_embedding_bag_backward(
      grad, {ids, bag_of_id, per_sample_weights.value_or(at::Tensor()), bag_size, max_ids, mode}, rows);
}

at::Tensor weights_gradient_of_bags(const at::Tensor& grad, const at::Tensor& part, const at::Tensor& ids,
                                    const at::Tensor& bag_of_id, int64_t offset, int64_t num_rows,
                                    int64_t padding_idx) {
  TORCH_CHECK_VALUE(grad.dim() == 2 && part.dim() == 2 && grad.size(1) == part.size(1) && ids.dim() == 1 &&
                        bag_of_id.sizes() == ids.sizes(),
                    "masked_embedding_bag_weights_backward: 'grad' and 'part' must have equally many features, ",
                    "'bag_of_id' must be as large as 'ids'; they have sizes ", grad.sizes(), ", ", part.sizes(), ", ",
                    bag_of_id.sizes(), " and ", ids.sizes());
  const TableRows rows =
      rows_of_part("masked_embedding_bag_weights_backward", offset, part.size(0), num_rows, padding_idx);
  if (grad.is_meta()) return grad.new_empty(ids.sizes());
  return fused_masked_embedding_bag_weights_backward(grad, part, ids, bag_of_id, rows);
}

template <typename Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

struct MaskedEmbeddingBagFn : torch::autograd::Function<MaskedEmbeddingBagFn> {
  static torch::autograd::variable_list forward(AutogradContext* ctx, const at::Tensor& part, const at::Tensor& ids,
                                                const at::Tensor& offsets, int64_t offset, int64_t num_rows,
                                                int64_t mode, const OptionalTensor& per_sample_weights,
                                                bool include_last_offset, int64_t padding_idx) {
    static const auto op = operator_named<decltype(pool_part)>("dtensor::masked_embedding_bag");
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [result, bag_of_id, bag_size, max_ids] =
        op.call(part, ids, offsets, offset, num_rows, mode, per_sample_weights, include_last_offset, padding_idx);
    const at::Tensor weights = per_sample_weights.value_or(at::Tensor());
    ctx->save_for_backward({weights.defined() && weights.requires_grad() ? part : at::Tensor(), ids, weights, bag_of_id,
                            bag_size, max_ids});
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["num_own_rows"] = part.size(0);
    ctx->saved_data["num_rows"] = num_rows;
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["padding_idx"] = padding_idx;
    ctx->mark_non_differentiable({bag_of_id, bag_size, max_ids});
    return {result, bag_of_id, bag_size, max_ids};
  }

  static torch::autograd::variable_list backward(AutogradContext* ctx, torch::autograd::variable_list grads) {
    static const auto of_part =
        operator_named<decltype(part_gradient_of_bags)>("dtensor::masked_embedding_bag_backward");
    static const auto of_weights =
        operator_named<decltype(weights_gradient_of_bags)>("dtensor::masked_embedding_bag_weights_backward");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &part = saved[0], &ids = saved[1], &weights = saved[2], &bag_of_id = saved[3];
    TORCH_CHECK_NOT_IMPLEMENTED(
        !c10::GradMode::is_enabled() || !(grads[0].requires_grad() || (weights.defined() && weights.requires_grad())),
        "masked_embedding_bag: second derivatives are not implemented; call backward() without create_graph, or ",
        "masked_embedding, which has them");
    auto& data = ctx->saved_data;
    const int64_t offset = data["offset"].toInt(), num_rows = data["num_rows"].toInt(),
                  padding_idx = data["padding_idx"].toInt();
    torch::autograd::variable_list result(9);
    if (ctx->needs_input_grad(0))
      result[0] =
          of_part.call(grads[0], ids, bag_of_id, saved[4], saved[5], offset, data["num_own_rows"].toInt(), num_rows,
                       data["mode"].toInt(), weights.defined() ? OptionalTensor(weights) : std::nullopt, padding_idx);
    if (part.defined()) result[6] = of_weights.call(grads[0], part, ids, bag_of_id, offset, num_rows, padding_idx);
    return result;
  }
};

FourTensors pool_with_autograd(const at::Tensor& part, const at::Tensor& ids, const at::Tensor& offsets, int64_t offset,
                               int64_t num_rows, int64_t mode, const OptionalTensor& per_sample_weights,
                               bool include_last_offset, int64_t padding_idx) {
  const auto r = MaskedEmbeddingBagFn::apply(part, ids, offsets, offset, num_rows, mode, per_sample_weights,
                                             include_last_offset, padding_idx);
  return {r[0], r[1], r[2], r[3]};
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_FRAGMENT(dtensor, m) {
  m.def(
      "masked_embedding_bag(Tensor part, Tensor ids, Tensor offsets, int offset, int num_rows, int mode=0, "
      "Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> "
      "(Tensor result, Tensor bag_of_id, Tensor bag_size, Tensor max_ids)");
  m.def(
      "masked_embedding_bag_backward(Tensor grad, Tensor ids, Tensor bag_of_id, Tensor bag_size, Tensor max_ids, "
      "int offset, int num_own_rows, int num_rows, int mode=0, Tensor? per_sample_weights=None, int padding_idx=-1) "
      "-> Tensor");
  m.def(
      "masked_embedding_bag_weights_backward(Tensor grad, Tensor part, Tensor ids, Tensor bag_of_id, int offset, "
      "int num_rows, int padding_idx=-1) -> Tensor");
}

// For CPU, CUDA, tensors without data, and all other devices.
TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  m.impl("masked_embedding_bag", &dtensor::internal::pool_part);
  m.impl("masked_embedding_bag_backward", &dtensor::internal::part_gradient_of_bags);
  m.impl("masked_embedding_bag_weights_backward", &dtensor::internal::weights_gradient_of_bags);
}

TORCH_LIBRARY_IMPL(dtensor, Autograd, m) { m.impl("masked_embedding_bag", &dtensor::internal::pool_with_autograd); }
