#include "placement/placement.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor {
namespace {

constexpr std::string_view kReduceOpNames[] = {"sum", "avg", "product",
                                               "min", "max", "norm2"};  // in the order of ReduceOp

}  // namespace

std::string_view to_string(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

const Shape& Placement::offset_shape() const {
  static const Shape none;
  return offset_shape_ ? *offset_shape_ : none;
}

Placement Replicate() { return Placement(); }

Placement Shard(int64_t dim) {
  Placement p;
  p.kind_ = Placement::Kind::kShard;
  p.dim_ = dim;
  return p;
}

Placement StridedShard(int64_t dim, int64_t split_factor) {
  Placement p;
  p.kind_ = Placement::Kind::kStridedShard;
  p.dim_ = dim;
  p.split_factor_ = split_factor;
  return p;
}

Placement Partial(ReduceOp op) {
  Placement p;
  p.kind_ = Placement::Kind::kPartial;
  p.reduce_op_ = op;
  return p;
}

Placement MaskPartial(Shape offset_shape, int64_t offset_dim, ReduceOp op) {
  Placement p;
  p.kind_ = Placement::Kind::kMaskPartial;
  p.reduce_op_ = op;
  p.dim_ = offset_dim;
  p.offset_shape_ = std::make_shared<const Shape>(std::move(offset_shape));
  return p;
}

std::string to_string(const Placement& p) {
  const std::string_view name = to_string(p.reduce_op());
  const absl::string_view op(name.data(), name.size());  // Debian's Abseil has a string_view of its own
  switch (p.kind()) {
    case Placement::Kind::kReplicate:
      return "R";
    case Placement::Kind::kShard:
      return absl::StrCat("S(", p.dim(), ")");
    case Placement::Kind::kStridedShard:
      return absl::StrCat("_S(", p.dim(), ", ", p.split_factor(), ")");
    case Placement::Kind::kPartial:
      return absl::StrCat("P(", op, ")");
    case Placement::Kind::kMaskPartial:
      return absl::StrCat("MaskP(", op, ", [", absl::StrJoin(p.offset_shape(), ", "), "], ", p.offset_dim(), ")");
  }
  return "invalid";
}

std::string to_string(const Placements& p) {
  std::string text;
  for (const Placement& placement : p) text += to_string(placement);
  return text;
}

std::ostream& operator<<(std::ostream& os, const Placement& p) { return os << to_string(p); }
std::ostream& operator<<(std::ostream& os, const Placements& p) { return os << to_string(p); }

Placements without_partials(Placements placements) {
  for (Placement& p : placements) {
    if (p.is_partial()) p = Replicate();
  }
  return placements;
}

namespace internal {

Placements as_addends(Placements placements) {
  for (Placement& p : placements) {
    if (p.is_partial()) p = Partial(p.reduce_op());
  }
  return placements;
}

bool has_nonlinear_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& p) { return p.is_partial() && !is_linear(p.reduce_op()); });
}

}  // namespace internal

}  // namespace dtensor
