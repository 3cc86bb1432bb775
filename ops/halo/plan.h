// Plans which rank sends which elements to which rank when every rank needs a part of a tensor beyond what it holds: a
// halo of its neighbours' elements, shifted elements, all that a window reaches. Pure: no data, the same on every rank,
// also where no rank is owned.
//
//   // x of [16, 16], S(0)S(1) on a mesh of 4 x 4; every rank needs its part of x.roll({1, 1}, {0, 1}).
//   make_halo_plan({spec_of(x), result, {{.dim = 0, .map = rolled(16, 1)}, {.dim = 1, .map = rolled(16, 1)}}});
//
// Ranks exchange only along the mesh dims that cut one of these dims, and receive only what they lack. It is one
// exchange however far the halo reaches, corners included.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "ops/halo/index_map.h"
#include "ops/support/cut_dims.h"
#include "plan/spec.h"

namespace dtensor::internal {

struct GhostRegion;  // dtensor/layout_cache/ghost_region.h

// One dim that the tensor and the result have in common.
struct HaloDim {
  int64_t dim = 0;
  IndexMap map;
  // The places that a rank needs if it holds these places of the result. Null: the same ones.
  std::function<IndexRanges(const IndexRanges& of_result)> reach;
};

struct HaloRequest {
  SpecPtr source;
  SpecPtr result;             // distributes the result, and so what each rank needs
  std::vector<HaloDim> dims;  // ascending. Along other dims a rank needs what it holds
};

// An element that a rank needs at several places travels once per place.
struct HaloPlan {
  SpecPtr source;
  // "halos of S(0): of dim 0 rank 0 needs 15:16 and 0:3, rank 3 11:15", so that ranks which plan other halos of a
  // tensor are seen to make other calls. Of one group, its first and its last rank.
  std::string text;
  const RankGroups* group = nullptr;  // valid as long as `source`
  std::vector<int64_t> dims;          // of the request

  // For each owned rank:
  struct Rank {
    Shape wanted;         // sizes of the tensor it gets
    bool filled = false;  // every place of it shows an element
    // The parts of its own tensor that are shown: one segment per dim of the request, in all combinations, row-major.
    std::vector<Segments> held;
  };
  std::vector<Rank> ranks;
  // From Rank::held (`input`: which combination) to the receiver's tensor, also where sender and receiver are the same
  // rank.
  std::vector<Message> messages;

  int64_t bytes = 0;       // received by the rank that receives most
  int64_t bytes_back = 0;  // the same for add_back_halos(): sent by the rank that sends most
  int64_t peak_bytes = 0;  // local tensor, result and buffers
  double seconds = 0;      // estimate of the exchange

  bool is_local() const { return bytes == 0; }
};

// The rank's position along the mesh dims that cut `dim`: 0 if none does.
int64_t place_of(const Spec& spec, int64_t dim, int64_t rank);
// The indices of `dim` that the rank at each position holds. Nullopt: a rank holds none, or several runs.
std::optional<std::vector<IndexRange>> runs_along(const Spec& spec, int64_t dim);

// Null where parts consist of too many pieces (a StridedShard of many runs).
// REQUIRES: cutting_mesh_dims() is not empty for the request's dims; nothing is Partial along these mesh dims. It may
// be along others.
std::shared_ptr<const HaloPlan> make_halo_plan(const HaloRequest& request);
// The same from boxes of a ghost region of the source, as boxes_along() gives them, instead of its parts: only copies.
// Null, on all ranks: a rank needs an element beyond its box, or there are too many pieces.
std::shared_ptr<const HaloPlan> make_plan_within(const HaloRequest& request, const GhostRegion& region);

}  // namespace dtensor::internal
