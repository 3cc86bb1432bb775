// Writes a copied view back to its bases: each rank receives just the written elements that it stores. For
// write_back.cc.
//
// Of x of [4096, 512], S(0) over 4 ranks, the parts of x.slice(0, 1, -1) begin a row or two elsewhere than those of x.
// After a write to the slice, a rank stores its own part of it, but for a row or two, and the rows that it receives
// from its neighbour. One exchange serves all bases of a view of a view of a view.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <vector>

#include "comm/comm_call.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "plan/limits.h"
#include "plan/spec.h"

namespace dtensor::internal {

// A tensor, and its offset in its memory.
struct PlacedSpec {
  SpecPtr spec;
  int64_t offset = 0;
  std::shared_ptr<const GhostRegion> around = nullptr;  // its ghost region, or null
};

struct StoreRequest {
  PlacedSpec written;
  // The bases to store in: that of the view, the base of that base, and so on, those for which parts moved.
  std::vector<PlacedSpec> bases;
  // The alternative: layouts from that of `written` on, in the last of which each rank has all that it stores.
  c10::ArrayRef<SpecPtr> by_layouts;
};

struct StoreExchange {
  SpecPtr written;
  int64_t offset = 0;                              // of `written` in its memory
  const RankGroups* group = nullptr;               // valid as long as `written`; null where nothing is received
  std::vector<std::vector<LocalLayout>> received;  // of `written`, per owned rank: received elements, one tensor each
  std::vector<Message> messages;                   // to those tensors
  int64_t bytes = 0;                               // received by the rank that receives most
  int64_t buffer_bytes = 0;                        // alive in addition to the part that was written
  double seconds = 0;                              // estimate
};

// Null where redistribution by layouts is to be used: it moves nothing, or is cheaper; a tensor is Partial, has another
// dtype, or is no view dim by dim; `limits` would be exceeded. Redistribution does not update ghost regions. Cached per
// world. Pure: the same on all ranks.
std::shared_ptr<const StoreExchange> cached_store_exchange(const StoreRequest& request, const Limits& limits);

// Elements of a tensor that a rank holds, with their indices.
struct HeldPiece {
  LocalLayout layout;
  at::Tensor values;
};
using HeldPieces = std::vector<std::vector<HeldPiece>>;  // per owned rank

HeldPieces whole_parts(const Spec& spec, RankTensors locals);
RankTensors as_locals(HeldPieces pieces);  // for the result of whole_parts()

// Adds the received elements to `pieces`, the result of whole_parts(). Below autograd, one call of the world's
// communicator, or none where no rank lacks anything.
void fetch_stored(const StoreExchange& exchange, const CommCause& cause, HeldPieces& pieces);

}  // namespace dtensor::internal
