// What was written to a copied view comes to the ranks that store it: of each other's parts no more than that. For
// view_origin.cc.
//
// Of x of [4096, 512], S(0) over 4 ranks, the parts of x.slice(0, 1, -1) begin a row or two elsewhere than those of x.
// Who writes to the slice has a rank store its own part of it, but for a row or two, and those that it gets from its
// neighbour. One exchange serves all tensors that a view of a view of a view is stored in.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <vector>

#include "comm/comm_call.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "plan/limits.h"
#include "plan/spec.h"

namespace dtensor {

// A tensor, and where it begins in its memory.
struct PlacedSpec {
  SpecPtr spec;
  int64_t offset = 0;
  std::shared_ptr<const GhostRegion> around = nullptr;  // what ranks keep of it besides their parts, or null
};

struct StoreRequest {
  PlacedSpec written;
  // What it is a view of, and what that is a view of, those for which parts moved.
  std::vector<PlacedSpec> bases;
  // The other way: layouts from that of `written` on, in the last of which each rank has all that it stores.
  c10::ArrayRef<SpecPtr> by_layouts;
};

struct StoreExchange {
  SpecPtr written;
  const Group* group = nullptr;             // valid as long as `written`; null where nothing comes
  std::vector<std::vector<Part>> received;  // of `written`, per owned rank: what comes, one tensor each
  std::vector<Message> messages;            // to those tensors
  int64_t bytes = 0;                        // received by the rank that receives most
  int64_t buffer_bytes = 0;                 // alive besides the part that was written
  double seconds = 0;                       // estimate
};

// Null where the way by layouts is to be taken: nothing moves on it, or it is cheaper; a tensor is Partial, another
// dtype, or no view dim by dim; `limits` would not be kept. It does not bring what ranks keep around their parts.
// Remembered per world. Pure: the same on all ranks.
std::shared_ptr<const StoreExchange> cached_store_exchange(const StoreRequest& request, const Limits& limits);

// Elements of a tensor that a rank has, and which those are.
struct HeldPiece {
  Part layout;
  at::Tensor values;
};
using HeldPieces = std::vector<std::vector<HeldPiece>>;  // per owned rank

HeldPieces whole_parts(const Spec& spec, RankTensors locals);
RankTensors as_locals(HeldPieces pieces);  // of whole_parts()

// Adds what comes to `pieces`, which are whole_parts(). Below autograd, one call of the world's communicator, or none
// where nobody lacks anything.
void fetch_stored(const StoreExchange& exchange, const CommCause& cause, HeldPieces& pieces);

}  // namespace dtensor
