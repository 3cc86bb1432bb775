// Expected local tensors, computed with at::chunk, at::cat and arithmetic, independently of layouts and plans.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "comm/scope.h"

namespace dtensor {

using Mesh = std::vector<int64_t>;
using Coordinate = absl::Span<const int64_t>;

inline at::Tensor chunk_of(const at::Tensor& t, int64_t n, int64_t dim, int64_t i) {
  const auto chunks = t.chunk(n, dim);
  return i < static_cast<int64_t>(chunks.size()) ? chunks[i] : t.narrow(dim, t.size(dim), 0);
}

inline at::Tensor piece_of(const at::Tensor& t, const Placement& p, int64_t n, int64_t i) {
  if (p.is_shard()) return chunk_of(t, n, p.dim(), i);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& piece : t.chunk(p.split_factor(), p.dim())) parts.push_back(chunk_of(piece, n, p.dim(), i));
  return at::cat(parts, p.dim());
}

// The i-th of n addends of t, all different; exact for integers in float64.
inline at::Tensor addend_of(const at::Tensor& t, ReduceOp op, int64_t n, int64_t i) {
  switch (op) {
    case ReduceOp::kSum:
      return i + 1 < n ? t * (i + 2) : t - t * ((n - 1) * (n + 2) / 2);
    case ReduceOp::kAvg:
      return t + (2 * i - (n - 1));
    case ReduceOp::kMax:
      return at::where((t + i).remainder(n) == 0, t, t - (1 + i));
    case ReduceOp::kMin:
      return at::where((t + i).remainder(n) == 0, t, t + (1 + i));
    case ReduceOp::kProduct:
      return n == 1 ? t : i == 0 ? t * 4 : at::full_like(t, i == 1 ? 0.25 : 1.0);
    case ReduceOp::kNorm2:
      return i == 0 ? t : t * 0;
  }
  return t;
}

inline at::Tensor reduce(const std::vector<at::Tensor>& addends, ReduceOp op) {
  at::Tensor r = addends[0];
  for (size_t i = 1; i < addends.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        r = r + addends[i];
        break;
      case ReduceOp::kMax:
        r = at::maximum(r, addends[i]);
        break;
      case ReduceOp::kMin:
        r = at::minimum(r, addends[i]);
        break;
      case ReduceOp::kProduct:
        r = r * addends[i];
        break;
      case ReduceOp::kNorm2:
        r = r + addends[i];  // one of them is not zero
        break;
    }
  }
  return op == ReduceOp::kAvg ? r / static_cast<int64_t>(addends.size()) : r;
}

inline at::Tensor local_of(at::Tensor t, const DeviceMesh& mesh, const Placements& placements, Coordinate at) {
  for (size_t m = 0; m < placements.size(); ++m) {
    const Placement& p = placements[m];
    if (p.is_sharded()) t = piece_of(t, p, mesh.shape()[m], at[m]);
    if (p.is_partial()) t = addend_of(t, p.reduce_op(), mesh.shape()[m], at[m]);
  }
  return t.contiguous();
}

inline internal::RankTensors locals_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  internal::RankTensors locals;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
    locals.push_back(local_of(full, mesh, placements, mesh.local_coordinate(static_cast<int64_t>(i))));
  }
  return locals;
}

// The value that the ranks that differ from `at` only in Partial mesh dims hold together.
inline at::Tensor value_at(const internal::RankTensors& locals, const DeviceMesh& mesh, const Placements& placements,
                           Mesh at, size_t m = 0) {
  while (m < placements.size() && !placements[m].is_partial()) ++m;
  if (m == placements.size()) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index = index * mesh.shape()[d] + at[d];
    return locals[index];
  }
  std::vector<at::Tensor> addends;
  for (at[m] = 0; at[m] < mesh.shape()[m]; ++at[m]) addends.push_back(value_at(locals, mesh, placements, at, m + 1));
  return reduce(addends, placements[m].reduce_op());
}

// Events after they happened.
struct EventLog : internal::CommListener {
  std::vector<CommEvent> events;
  void on_comm(const CommEvent& event, bool before) override {
    if (!before) events.push_back(event);
  }
  // All fields except the time.
  std::string text() const {
    std::string text;
    for (const CommEvent& e : events) {
      absl::StrAppend(&text, std::string(to_string(e.collective)), "(", e.mesh_dims, ") ", e.group_size, " ", e.bytes,
                      " ", static_cast<int>(e.dtype), " ", e.cause.op, " ", e.cause.argument, " ", e.cause.implicit,
                      "\n");
    }
    return text;
  }
};

inline DeviceMesh local_mesh(const Mesh& shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  return DeviceMesh(World::local(size), shape);
}

// 1, 2, 3, ...
inline at::Tensor numbers(at::IntArrayRef sizes, c10::ScalarType dtype = at::kDouble) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return (at::arange(n, at::TensorOptions().dtype(at::kDouble)) + 1).reshape(sizes).to(dtype);
}

}  // namespace dtensor
