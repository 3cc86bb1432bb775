#include "placement/parse_placements.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/valid_dim.h"
#include "placement/with_dim.h"

namespace dtensor::internal {
namespace {

// Debian's Abseil has a string_view of its own.
absl::string_view to_absl(std::string_view text) { return absl::string_view(text.data(), text.size()); }

// Recursive descent over one text. Every member that reads skips the spaces before what it reads; the first error is
// kept and everything after it reads nothing.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Placements> parse() {
    Placements placements;
    if (at_end()) return placements;
    do {
      placements.push_back(placement());
      // A comma announces one more placement, so that "S(0),,R" and "R," do not pass for a shorter list.
    } while (accept(",") || (error_.ok() && !at_end()));
    if (!error_.ok()) return error_;
    return placements;
  }

 private:
  Placement placement() {
    if (accept("R")) return Replicate();
    if (accept("S")) {
      expect("(");
      const int64_t dim = integer();
      expect(")");
      return Shard(dim);
    }
    if (accept("_S")) {
      expect("(");
      const int64_t dim = integer();
      expect(",");
      const int64_t split_factor = integer();
      expect(")");
      return StridedShard(dim, split_factor);
    }
    if (accept("P")) {
      if (!accept("(")) return Partial();
      const ReduceOp op = reduce_op();
      expect(")");
      return Partial(op);
    }
    if (accept("MaskP")) {
      expect("(");
      const ReduceOp op = reduce_op();
      expect(",");
      Shape offset_shape = shape();
      expect(",");
      const int64_t offset_dim = integer();
      expect(")");
      return MaskPartial(std::move(offset_shape), offset_dim, op);
    }
    fail("R, S(dim), _S(dim, split_factor), P(op) or MaskP(op, [sizes], dim)");
    return Replicate();
  }

  Shape shape() {
    Shape sizes;
    expect("[");
    if (accept("]")) return sizes;
    do {
      sizes.push_back(integer());
    } while (accept(","));
    expect("]");
    return sizes;
  }

  ReduceOp reduce_op() {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kNorm2}) {
      if (accept(to_string(op))) return op;
    }
    fail("sum, avg, product, min or max");
    return ReduceOp::kSum;
  }

  int64_t integer() {
    skip_spaces();
    int64_t value = 0;
    const char* end = text_.data() + text_.size();
    const auto [rest, error] = std::from_chars(text_.data() + position_, end, value);
    if (error != std::errc()) {
      fail("a 64-bit integer");
    } else if (error_.ok()) {
      position_ = rest - text_.data();
    }
    return value;
  }

  bool accept(std::string_view token) {
    skip_spaces();
    if (!error_.ok() || text_.substr(position_, token.size()) != token) return false;
    position_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) fail(absl::StrCat("'", to_absl(token), "'"));
  }

  void fail(absl::string_view expected) {
    if (!error_.ok()) return;
    // Escaped, so that the message stays one line whatever the text holds.
    error_ = absl::InvalidArgumentError(
        absl::StrCat("\"", absl::Utf8SafeCEscape(to_absl(text_)), "\", position ", position_, ": expected ", expected));
  }

  bool at_end() {
    skip_spaces();
    return position_ == text_.size();
  }

  void skip_spaces() { position_ = std::min(text_.find_first_not_of(" \t\r\n", position_), text_.size()); }

  std::string_view text_;
  size_t position_ = 0;
  absl::Status error_;
};

std::string no_such_dim(absl::string_view what, int64_t dim, int64_t ndim) {
  if (ndim == 0) return absl::StrCat("a ", what, " of 0 dims cannot be sharded");
  return absl::StrCat("a ", what, " of ", ndim, " dims has no dim ", dim, "; expected ", -ndim, " to ", ndim - 1);
}

bool commute(ReduceOp a, ReduceOp b) { return a == b || (is_linear(a) && is_linear(b)); }

absl::Status placements_error(const Placements& placements, size_t mesh_dim, absl::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat(to_string(placements[mesh_dim]), " over mesh dim ", mesh_dim, ": ", reason));
}

}  // namespace

absl::StatusOr<Placements> parse_placements(std::string_view text) { return Parser(text).parse(); }

absl::Status check_placements(const Placements& placements, int64_t ndim) {
  std::optional<size_t> first_partial;
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    if (p.is_sharded() && !valid_dim(p.dim(), ndim)) {
      return placements_error(placements, i, no_such_dim("tensor", p.dim(), ndim));
    }
    if (p.is_strided_shard() && p.split_factor() < 1) {
      return placements_error(placements, i, "the split factor must be at least 1");
    }
    if (p.is_mask_partial()) {
      const int64_t table_ndim = p.offset_shape().size();
      if (!valid_dim(p.offset_dim(), table_ndim))
        return placements_error(placements, i, no_such_dim("table", p.offset_dim(), table_ndim));
    }
    if (p.is_partial()) {
      if (!first_partial) first_partial = i;
      const Placement& first = placements[*first_partial];
      if (!commute(first.reduce_op(), p.reduce_op())) {
        return placements_error(placements, i,
                                absl::StrCat("it does not commute with ", to_string(first), " over mesh dim ",
                                             *first_partial, "; of different reductions only sum and avg mix"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Placements> normalize_placements(const Placements& placements, int64_t ndim) {
  if (absl::Status error = check_placements(placements, ndim); !error.ok()) return error;
  Placements normalized = placements;
  for (Placement& p : normalized) {
    if (p.is_sharded()) p = with_dim(p, *valid_dim(p.dim(), ndim));
    if (p.is_mask_partial() && p.offset_dim() < 0) {
      const int64_t table_ndim = p.offset_shape().size();
      p = MaskPartial(p.offset_shape(), *valid_dim(p.offset_dim(), table_ndim), p.reduce_op());
    }
  }
  return normalized;
}

}  // namespace dtensor::internal
