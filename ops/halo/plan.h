// Who sends what to whom when every rank wants a part of a tensor beyond what it holds: its neighbours' elements beside
// its own, those that a shift brings, all that a window reaches. Pure: no data, the same on every rank, also where no
// rank is owned. Internal to ops/.
//
//   // x of [16, 16], S(0)S(1) on a mesh of 4 x 4; every rank wants its part of x.roll({1, 1}, {0, 1}).
//   make_halo_plan({spec_of(x), result, {{.dim = 0, .map = rolled(16, 1)}, {.dim = 1, .map = rolled(16, 1)}}});
//
// Ranks talk along the mesh dims that cut one of these dims, and only those: what they get from there is what they
// lack. However far that reaches, it is one exchange, corners included.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/comm_call.h"
#include "ops/halo/index_map.h"
#include "plan/spec.h"

namespace dtensor {

// Of one dim that the tensor and the result have in common.
struct HaloDim {
  int64_t dim = 0;
  IndexMap map;
  // The places that a rank wants which has these of the result. Null: the same.
  std::function<Runs(const Runs& of_result)> reach;
};

struct HaloRequest {
  SpecPtr source;
  SpecPtr result;             // says which part of the result is whose
  std::vector<HaloDim> dims;  // ascending. Along other dims a rank wants what it holds
};

// Of every element that a rank wants and that is shown at several places, as many copies travel.
struct HaloPlan {
  SpecPtr source;
  const Group* group = nullptr;  // valid as long as `source`
  std::vector<int64_t> dims;     // of the request

  // Of each owned rank:
  struct Rank {
    Shape wanted;         // sizes of what it gets
    bool filled = false;  // every place of it shows an element
    // The parts of its own tensor that are shown: one segment per dim of the request, in all combinations, row-major.
    std::vector<Segments> held;
  };
  std::vector<Rank> ranks;
  // From Rank::held (`input`: which combination) to what the receiver gets, also where both are one rank.
  std::vector<Message> messages;

  int64_t bytes = 0;       // received by the rank that receives most
  int64_t bytes_back = 0;  // the same where all goes back: sent by the rank that sends most
  int64_t peak_bytes = 0;  // part, what is wanted, and buffers
  double seconds = 0;      // estimate of the exchange

  bool is_local() const { return bytes == 0; }
};

// The mesh dims of more than one rank that cut one of `dims`.
std::vector<int64_t> cutting_mesh_dims(const Spec& spec, const std::vector<int64_t>& dims);

// Null where parts are cut into too many pieces (a StridedShard of many runs).
// REQUIRES: cutting_mesh_dims() is not empty for the request's dims; nothing there is Partial. Other mesh dims may be.
std::shared_ptr<const HaloPlan> make_halo_plan(const HaloRequest& request);

}  // namespace dtensor
