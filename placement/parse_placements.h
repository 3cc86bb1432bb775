// Placements from texts and from users, with what is wrong as a status.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "placement/placement.h"

namespace dtensor::internal {

// The texts of errors do not begin with a function's name: the code that throws them adds the user's call.

// Reads what to_string writes; spaces and commas between placements are allowed, and "P" alone means P(sum).
// Error: InvalidArgument with the text, the position and what would be accepted there.
absl::StatusOr<Placements> parse_placements(std::string_view text);

// `placements` with negative dims counted from the end of a tensor of `ndim` dims (of the table, for a MaskPartial).
// Error: InvalidArgument for a dim outside [-ndim, ndim), a split factor < 1, or Partials that do not commute: all must
// have one ReduceOp, but kSum and kAvg mix.
absl::StatusOr<Placements> normalize_placements(const Placements& placements, int64_t ndim);
// The same error, without a copy of the placements.
absl::Status check_placements(const Placements& placements, int64_t ndim);

}  // namespace dtensor::internal
