// The ratios by which one way of computing may cost more than another and is chosen all the same. Costs are estimates
// of one call on an idle network; each ratio stands for what they do not include. docs/cost.md has the terms that they
// modify.
#pragma once

namespace dtensor::internal {

// A base may take this many times as long to redistribute as one view of it: the other views are then derived from it.
inline constexpr double kBaseForViews = 2;

// A write to a view may take this many times as long to reach the base if that updates the ghost region of the base,
// too, which spares the next read an exchange.
inline constexpr double kGhostUpdate = 2;

// A shift that also fetches the border of the other side, for a shift the other way, may take this many times as long.
inline constexpr double kPrefetch = 1.25;

// An exchange of far fewer bytes may take this many times as long: other messages delay it less.
inline constexpr double kFewerBytes = 1.25;

// The gradients of a path to parameters may have this many times the elements of the gradient that they come from, and
// still be reduced in its place, together with the others of the bucket.
inline constexpr double kBucketedElements = 1.25;

// A Partial result that is larger than its input since the input was inserted into it, or padded, may cost this many
// times as much to reduce as the input: often the other parts follow, and one reduction serves all.
inline constexpr double kMaxPadGrowth = 3;

// A Partial result with as many elements as its input may cost this many times as much to reduce: a cast of a small
// tensor to a dtype of twice the size.
inline constexpr double kSizeTolerance = 1.1;

}  // namespace dtensor::internal
