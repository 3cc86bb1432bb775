#include "dtensor/dispatch/internal/mutable_layout.h"

#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/alias_group.h"

namespace dtensor {

std::optional<MutableLayout> mutable_layout(const at::Tensor& t, int k) {
  const DTensorMeta& meta = meta_without_sync(t);
  const LocalStorage& storage = *meta.storage;
  if (storage.user_may_write || storage.origin || is_leaf_parameter(t)) return std::nullopt;
  if (!storage.shared) return meta.laid_out_by_engine ? std::optional(MutableLayout{k}) : std::nullopt;
  const AliasGroup* group = storage.alias_group.load(std::memory_order_acquire);
  if (group == nullptr || storage.is_parameter.load(std::memory_order_relaxed)) return std::nullopt;
  const uint64_t dims = group->splittable(meta, current_dispatch_scope().limits);
  return dims != 0 ? std::optional(MutableLayout{k, dims}) : std::nullopt;
}

}  // namespace dtensor
