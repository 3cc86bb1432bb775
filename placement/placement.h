// How one mesh dimension lays out a tensor.
//
// A Placement is a small value: copy it, compare it, hash it. A layout on an n-d mesh is a list of them, one per mesh
// dimension, applied left to right: {Replicate(), Shard(0)} on a mesh (dp, tp) repeats the tensor over dp and cuts dim
// 0 over tp. The same names and meanings as torch.distributed.tensor.
//
//   Placements p = {Shard(0), Partial()};
//   to_string(p);                                        // "S(0)P(sum)"
//   p == Placements{Shard(0), Partial(ReduceOp::kSum)};  // true
//
// No tensors, no meshes. Thread-safe as values are.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor {

// How the addends that ranks hold combine into the value. kAvg: the sum divided by the number of ranks. kNorm2: the
// root of the sum of squares, as norms of parts become the norm of the whole; addends of one number have one sign,
// which the value has, too. Of real floating-point numbers only.
enum class ReduceOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kNorm2 };

std::string_view to_string(ReduceOp op);  // "sum", "avg", "product", "min", "max", "norm2"

namespace internal {

// Whether the reduction of a sum is the sum of the reductions.
inline bool is_linear(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }

}  // namespace internal

using Shape = c10::SmallVector<int64_t, 4>;

class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial, kMaskPartial };

  Placement() = default;  // Replicate

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_strided_shard() const { return kind_ == Kind::kStridedShard; }
  // Shard or StridedShard.
  bool is_sharded() const { return is_shard() || is_strided_shard(); }
  bool is_sharded_on(int64_t dim) const { return is_sharded() && dim_ == dim; }
  // Partial or MaskPartial.
  bool is_partial() const { return kind_ == Kind::kPartial || kind_ == Kind::kMaskPartial; }
  bool is_mask_partial() const { return kind_ == Kind::kMaskPartial; }

  int64_t dim() const { return dim_; }                    // Shard, StridedShard: the tensor dim that is cut
  int64_t split_factor() const { return split_factor_; }  // StridedShard
  ReduceOp reduce_op() const { return reduce_op_; }       // Partial, MaskPartial
  const Shape& offset_shape() const;                      // MaskPartial: shape of the table that was looked up
  int64_t offset_dim() const { return dim_; }             // MaskPartial: the table's sharded dim

  friend bool operator==(const Placement& a, const Placement& b) {
    return a.kind_ == b.kind_ && a.reduce_op_ == b.reduce_op_ && a.dim_ == b.dim_ &&
           a.split_factor_ == b.split_factor_ &&
           (a.offset_shape_ == b.offset_shape_ || a.offset_shape() == b.offset_shape());
  }
  friend bool operator!=(const Placement& a, const Placement& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    h = H::combine(std::move(h), p.kind_, p.reduce_op_, p.dim_, p.split_factor_);
    if (!p.offset_shape_) return h;
    return H::combine(H::combine_contiguous(std::move(h), p.offset_shape_->data(), p.offset_shape_->size()),
                      p.offset_shape_->size());
  }

 private:
  friend Placement Replicate();
  friend Placement Shard(int64_t dim);
  friend Placement StridedShard(int64_t dim, int64_t split_factor);
  friend Placement Partial(ReduceOp op);
  friend Placement MaskPartial(Shape offset_shape, int64_t offset_dim, ReduceOp op);

  Kind kind_ = Kind::kReplicate;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int64_t dim_ = 0;
  int64_t split_factor_ = 0;
  std::shared_ptr<const Shape> offset_shape_;  // of a MaskPartial; null for all others, which are copied more often
};

// Every rank holds the whole tensor.
Placement Replicate();
// Rank i holds the i-th piece of torch.chunk(tensor, n, dim). A negative dim counts from the end once it meets a
// tensor.
Placement Shard(int64_t dim);
// The dim is first cut into `split_factor` pieces by the chunk rule, each of those over the ranks; rank i holds the
// i-th part of every piece. What flattening [A, B] with B sharded gives: StridedShard(0, A).
Placement StridedShard(int64_t dim, int64_t split_factor);
// Every rank holds an addend of full shape; the value is their reduction.
Placement Partial(ReduceOp op = ReduceOp::kSum);
// The sum-Partial that a lookup into a row-sharded table of shape `offset_shape` leaves: at each position one rank at
// most holds something other than zero.
Placement MaskPartial(Shape offset_shape, int64_t offset_dim, ReduceOp op = ReduceOp::kSum);

// One placement per mesh dimension.
using Placements = std::vector<Placement>;

// "R", "S(0)", "_S(0, 2)", "P(sum)", "MaskP(sum, [10, 23], 0)"; a list is written without separators.
std::string to_string(const Placement& p);
std::string to_string(const Placements& p);
std::ostream& operator<<(std::ostream& os, const Placement& p);
std::ostream& operator<<(std::ostream& os, const Placements& p);

// `placements` with every Partial as Replicate: where the value is once it is reduced.
Placements without_partials(Placements placements);

namespace internal {

// The layout of a result computed from addends: MaskPartials become Partials.
Placements as_addends(Placements placements);
// Whether any of the placements is a Partial other than sum or average.
bool has_nonlinear_partial(const Placements& placements);

}  // namespace internal

}  // namespace dtensor
