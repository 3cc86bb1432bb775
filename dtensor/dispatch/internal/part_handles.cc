#include "dtensor/dispatch/internal/part_handles.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

#include "plan/sized_impl.h"

namespace dtensor::internal {
namespace {

// Whether the operators below autograd that compute with the part are those of its device: not for views that are
// conjugated or negated, and the like.
bool is_dense(const at::Tensor& part) {
  constexpr auto kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  return (part.key_set() - kAbove).highestFunctionalityKey() == c10::DispatchKey::Dense;
}

// Stricter than is_contiguous(), which strides of dims of size 1 do not concern, nor those of an empty tensor: a view
// keeps them.
bool is_row_major(const at::Tensor& part) {
  const c10::IntArrayRef sizes = part.sizes(), strides = part.strides();
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != stride) return false;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

bool may_view(const at::Tensor& part) { return is_dense(part) && is_row_major(part); }

// A handle of the memory of `part`, without sizes.
c10::intrusive_ptr<SizedImpl> unsized_view(const at::Tensor& part) {
  auto view =
      c10::make_intrusive<SizedImpl>(c10::TensorImpl::VIEW, c10::Storage(part.storage()), part.key_set(), part.dtype());
  view->set_storage_offset(part.storage_offset());
  return view;
}

at::Tensor other_handle(const at::Tensor& part) {
  if (may_view(part)) return view_part(part, part.sizes());  // cheaper
  const c10::TensorImpl& impl = *part.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/true));
}

}  // namespace

[[gnu::hot]] bool may_view_parts(const RankTensors& parts) { return std::all_of(parts.begin(), parts.end(), may_view); }

[[gnu::hot]] at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes) {
  if (c10::multiply_integers(sizes) != part.numel()) return part.view(sizes);  // the program resized it: ATen's error
  auto view = unsized_view(part);
  view->set_first_sizes(sizes);
  return at::Tensor(std::move(view));
}

[[gnu::hot]] bool may_permute_parts(const RankTensors& parts) {
  return std::all_of(parts.begin(), parts.end(), [](const at::Tensor& part) { return is_dense(part); });
}

[[gnu::hot]] at::Tensor permuted_part(const at::Tensor& part, c10::IntArrayRef order) {
  if (part.dim() != static_cast<int64_t>(order.size()))
    return part.permute(order);  // the program resized it: ATen's error
  const c10::IntArrayRef sizes = part.sizes(), strides = part.strides();
  c10::SmallVector<int64_t, 5> new_sizes, new_strides;
  for (const int64_t d : order) {
    new_sizes.push_back(sizes[d]);
    new_strides.push_back(strides[d]);
  }
  auto view = unsized_view(part);
  view->set_sizes_and_strides(new_sizes, new_strides);
  return at::Tensor(std::move(view));
}

[[gnu::hot]] RankTensors other_handles(const RankTensors& parts) {
  RankTensors handles;
  handles.reserve(parts.size());
  for (const at::Tensor& part : parts) handles.push_back(other_handle(part));
  return handles;
}

}  // namespace dtensor::internal
