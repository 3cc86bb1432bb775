#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/redistribute_parts.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/spread.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

void check_out(const ShardedTensor& t, int64_t rank, int64_t target, const at::Tensor& out) {
  if (rank == target) {
    TORCH_CHECK_VALUE(out.defined(), "Argument ``dst_tensor`` must be specified on destination rank ", rank);
    TORCH_CHECK_VALUE(out.sizes() == t.sizes(), "Argument ``dst_tensor`` have size ", out.sizes(), ",but should be ",
                      t.sizes());
  } else {
    const auto& owned = t.process_group().owned_ranks();
    const bool same_process = std::find(owned.begin(), owned.end(), target) != owned.end();
    TORCH_CHECK_VALUE(!out.defined() || same_process,
                      "Argument ``dst_tensor`` must NOT be specified on non-destination ranks.");
  }
}

}  // namespace

void ShardedTensor::gather(int64_t dst, const at::Tensor& out, std::optional<c10::ScalarType> dtype) const {
  const ProcessGroup& group = process_group();
  TORCH_CHECK_VALUE(dst >= 0 && dst < group.size(), "dst=", dst, " of a group of ", group.size(),
                    " ranks: it is a position in ", group.to_string());
  if (group.owned_ranks().empty()) return;
  const World& world = group.world();
  const int64_t target = group.ranks()[dst];
  check_on_all_ranks(group, "gather", [&](int64_t rank) { check_out(*this, rank, target, out); });
  c10::AutoGradMode no_grad(false);
  const c10::ScalarType type = dtype.value_or(this->dtype());
  RankPieces pieces = pieces_of(*this);
  for (auto& of_rank : pieces) {
    for (at::Tensor& t : of_rank) t = t.detach().to(type);
  }
  const Shape sizes(this->sizes().begin(), this->sizes().end());
  const Layout from(world, boxes_of(metadata(), group));
  const Layout to(world, {{target, Shape(sizes.size(), 0), sizes}});
  pieces = redistribute_parts(pieces, this->sizes(), type, from, to, {.function = "gather"});
  const auto& owned = world.owned_ranks();
  const auto at = std::find(owned.begin(), owned.end(), target);
  if (at != owned.end()) out.copy_(pieces[at - owned.begin()].at(0));
}

}  // namespace dtensor::sharded
