// The metadata of a distributed tensor: mesh, placements, global shape, strides, dtype.
//
// Specs are interned: two equal specs are one object while it is alive, so equality is a pointer comparison and a cache
// key is a few pointers. Immutable; thread-safe.
//
//   SpecPtr s = Spec::get(mesh, {Replicate(), Shard(0)}, {10, 8}, at::kFloat);
//   s->to_string();            // "f32[10, 8](RS(0)) @ mesh(dp=2, tp=2)"
//   s->local_shape(0);         // shape held by the first local rank
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>

#include "mesh/device_mesh.h"
#include "placement/geometry.h"
#include "placement/placement.h"
#include "plan/tensor_meta.h"

namespace dtensor {

namespace internal {
class SizedImpl;      // sized_impl.h
struct SpecInterner;  // spec.cc
}  // namespace internal

class Spec;
using SpecPtr = std::shared_ptr<const Spec>;

class Spec {
 public:
  ~Spec();
  // Placements are normalised against the shape.
  // Errors (c10::Error): their number differs from the mesh's dims, a dim out of range, mixed kinds of Partial.
  static SpecPtr get(const DeviceMesh& mesh, const Placements& placements, const TensorMeta& meta);
  static SpecPtr get(const DeviceMesh& mesh, const Placements& placements, c10::ArrayRef<int64_t> sizes,
                     c10::ScalarType dtype);
  // The same tensor in another layout.
  SpecPtr with_placements(const Placements& placements) const;

  const DeviceMesh& mesh() const { return mesh_; }
  const Placements& placements() const { return placements_; }
  const TensorMeta& meta() const { return meta_; }
  const Shape& sizes() const { return meta_.sizes; }
  const Shape& strides() const { return meta_.strides; }
  c10::ScalarType dtype() const { return meta_.dtype; }
  int64_t ndim() const { return static_cast<int64_t>(meta_.sizes.size()); }
  uint64_t id() const { return id_; }  // never reused for another spec

  // Without data, but with the sizes and strides: what tensors copy them from. Made at the first use.
  const internal::SizedImpl& sized_impl() const {
    const internal::SizedImpl* made = sized_impl_.load(std::memory_order_acquire);
    return made != nullptr ? *made : make_sized_impl();
  }
  bool is_replicated() const { return replicated_; }
  bool has_partial() const { return partial_; }
  // Whether the number of ranks that share `dim` does not divide its size. Not of size 1, which one rank has.
  bool is_uneven(int64_t dim) const;
  bool has_uneven_shards() const { return uneven_; }  // along some dim

  // The part of the i-th of mesh().local_ranks(); of any rank of the mesh.
  LocalLayout local_layout(int64_t i) const;
  LocalLayout layout_of_rank(int64_t rank) const;
  Shape local_shape(int64_t i) const {
    return i == 0 && !first_local_shape_.empty() ? first_local_shape_ : compute_local_shape(i);
  }
  // Bytes of the largest part any rank holds (that of coordinate 0, ...).
  int64_t max_local_bytes() const {
    const int64_t known = max_local_bytes_.load(std::memory_order_relaxed);
    return known >= 0 ? known : compute_max_local_bytes();
  }

  // "f32[10, 8](RS(0))"; with the mesh: "... @ mesh(dp=2, tp=2)".
  std::string to_short_string() const;
  std::string to_string() const;

  // Specs alive now, for tests and dumps.
  static size_t num_alive();

 private:
  Spec() = default;
  const internal::SizedImpl& make_sized_impl() const;
  int64_t compute_max_local_bytes() const;
  Shape compute_local_shape(int64_t i) const;
  DeviceMesh mesh_;
  Placements placements_;
  TensorMeta meta_;
  uint64_t id_ = 0;
  bool replicated_ = false, partial_ = false, uneven_ = false;
  Shape first_local_shape_;  // of the first local rank, often the only one; empty: there is none, or no dims
  mutable std::atomic<int64_t> max_local_bytes_{-1};  // computed at the first use
  mutable std::atomic<const internal::SizedImpl*> sized_impl_{nullptr};
  friend struct internal::SpecInterner;
};

std::ostream& operator<<(std::ostream& os, const Spec& spec);

}  // namespace dtensor
