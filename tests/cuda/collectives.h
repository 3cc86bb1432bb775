// Every collective on GPUs gives what it gives on CPU.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "mesh/world.h"
#include "tests/cuda/gpus.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

namespace dtensor {

inline constexpr at::ScalarType kDtypes[] = {
    at::kDouble, at::kFloat, at::kHalf,   at::kBFloat16, at::kLong,   at::kInt,          at::kShort,        at::kChar,
    at::kByte,   at::kBool,  at::kUInt16, at::kUInt32,   at::kUInt64, at::kComplexFloat, at::kComplexDouble};

inline std::vector<ReduceOp> reduce_ops(at::ScalarType dtype) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kProduct};
  if (!c10::isComplexType(dtype)) ops.insert(ops.end(), {ReduceOp::kMin, ReduceOp::kMax});
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

// Small whole numbers are exact in every dtype and order; means are not.
inline bool alike(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.cpu(), y = b.cpu();
  if (op != ReduceOp::kAvg) return at::equal(x, y);
  return at::allclose(x.to(at::kComplexDouble), y.to(at::kComplexDouble), 1e-2, 1e-2);
}

inline internal::RankPieces as_pieces(const internal::RankTensors& tensors) {
  internal::RankPieces pieces;
  for (const at::Tensor& t : tensors) pieces.push_back({t});
  return pieces;
}

// What `body` gives on `world` is what it gives on as many ranks on CPU. `body` makes tensors on the given devices.
using Body = std::function<internal::RankPieces(const internal::CommCall&, internal::Communicator&,
                                                const std::function<at::Tensor(at::Tensor, int64_t)>&)>;
inline void check_same(const World& world, const std::vector<int64_t>& shape, int64_t dim, ReduceOp op,
                       const Body& body) {
  const DeviceMesh mesh(world, shape), twin(World::local(world.size()), shape);
  const internal::RankPieces here = body(call_on(mesh, {dim}), world.communicator(),
                                         [&](at::Tensor t, int64_t rank) { return t.to(world.device(rank)); });
  const internal::RankPieces expected =
      body(call_on(twin, {dim}), twin.world().communicator(), [](at::Tensor t, int64_t) { return t; });
  REQUIRE(here.size() == mesh.local_ranks().size());
  for (size_t i = 0; i < here.size(); ++i) {
    const int64_t rank = mesh.local_ranks()[i];
    REQUIRE(here[i].size() == expected[rank].size());
    for (size_t k = 0; k < here[i].size(); ++k) {
      INFO("tensor " << k << " of rank " << rank);
      CHECK(here[i][k].device() == world.device(rank));
      CHECK(alike(here[i][k], expected[rank][k], op));
    }
  }
}

inline void check_collectives(const World& world, const std::vector<int64_t>& shape) {
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
    for (at::ScalarType dtype : kDtypes) {
      for (ReduceOp op : reduce_ops(dtype)) {
        CAPTURE(world.name(), shape, dim, c10::toString(dtype), to_string(op));
        check_same(world, shape, dim, op,
                   [&](const internal::CommCall& call, internal::Communicator& comm, const auto& on) {
                     internal::RankPieces inputs;
                     for (int64_t rank : call.ranks) {
                       inputs.push_back({on(values({3, 5}, dtype, rank), rank), on(values({0, 2}, dtype, rank), rank),
                                         on(values({4, 3}, dtype, rank), rank).t()});
                     }
                     return comm.all_reduce_many(call, inputs, op);
                   });
        for (const bool even : {true, false}) {
          check_same(world, shape, dim, op,
                     [&](const internal::CommCall& call, internal::Communicator& comm, const auto& on) {
                       internal::RankPieces inputs;
                       for (int64_t rank : call.ranks) {
                         auto& pieces = inputs.emplace_back();
                         for (int64_t p = 0; p < call.group->size; ++p)
                           pieces.push_back(on(values({even ? 3 : p, 2}, dtype, rank + p), rank));
                       }
                       return as_pieces(comm.reduce_scatter(call, inputs, op));
                     });
        }
      }
      CAPTURE(world.name(), shape, dim, c10::toString(dtype));
      check_same(world, shape, dim, ReduceOp::kSum,
                 [&](internal::CommCall call, internal::Communicator& comm, const auto& on) {
                   internal::RankTensors inputs;
                   for (int64_t rank : call.ranks) {
                     inputs.push_back(on(values({call.group->position_of[rank], 3}, dtype, rank), rank));
                     auto& shapes = call.receive_shapes.emplace_back();
                     for (int64_t p = 0; p < call.group->size; ++p) shapes.push_back({p, 3});
                   }
                   return comm.all_gather(call, inputs);
                 });
      check_same(
          world, shape, dim, ReduceOp::kSum,
          [&](internal::CommCall call, internal::Communicator& comm, const auto& on) {
            internal::RankPieces inputs;
            for (int64_t rank : call.ranks) {
              auto& pieces = inputs.emplace_back();
              auto& shapes = call.receive_shapes.emplace_back();
              for (int64_t p = 0; p < call.group->size; ++p) {
                pieces.push_back(
                    on(values({call.group->position_of[rank], p}, dtype, 10 * rank + p), rank).t());  // not contiguous
                shapes.push_back({call.group->position_of[rank], p});
              }
            }
            return comm.all_to_all(call, inputs);
          });
      check_same(world, shape, dim, ReduceOp::kSum,
                 [&](const internal::CommCall& call, internal::Communicator& comm, const auto& on) {
                   internal::RankTensors inputs;
                   for (int64_t rank : call.ranks) inputs.push_back(on(values({4, 2}, dtype, rank), rank));
                   return as_pieces(comm.broadcast(call, inputs, call.group->size - 1));
                 });
    }
  }
}

}  // namespace dtensor
