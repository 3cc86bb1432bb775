#include "dtensor/gradients/partial_parameter.h"

#include "comm/scope.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

void reduce_partial_parameter(const at::Tensor& leaf, const std::string& op) {
  const DTensorMeta& meta = meta_without_sync(leaf);
  if (!meta.laid_out_by_engine || !meta.spec->has_partial()) return;
  const CommCause cause{op, meta.name ? *meta.name : "parameter",
                        meta.name ? module_of(meta) : current_scope().module_path, /*implicit=*/true};
  share_contents(leaf, redistribute_below_autograd(leaf, without_partials(meta.spec->placements()), cause));
}

}  // namespace dtensor::internal
