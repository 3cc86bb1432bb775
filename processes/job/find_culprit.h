// Finds the rank at fault when a call of several ranks does not end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "processes/job/activity.h"
#include "processes/job/job_board.h"

namespace dtensor::internal {

// Why rank `other` cannot reach `mine`, as far as the store and this host know; "" if no reason is known. `only_final`:
// without reasons that may still change: it has not joined the job yet, or is stopped.
std::string find_fault(JobBoard& board, int64_t other, const Activity& mine, bool only_final);

// Asks the `others` for their activity: the first that has not reached `mine` or does not answer within 1.5 s, and its
// fault.
std::optional<std::pair<int64_t, std::string>> find_missing(JobBoard& board, absl::Span<const int64_t> others,
                                                            const Activity& mine, std::chrono::milliseconds waited);

// If members have left the job before `mine`, in which rank `rank` waits: if more than half of the members left, a rank
// that has reached `mine`, as its program has made a call too many; else one that left. Waits up to 1.5 s for the
// others to report or do either. nullopt: none has left.
std::optional<std::pair<int64_t, std::string>> find_leaver(JobBoard& board, absl::Span<const int64_t> members,
                                                           int64_t rank, const Activity& mine);

// The rank to blame if ranks differ, by position in `values`: one of the smallest set of equal values; on a tie, the
// last.
int64_t odd_one_out(absl::Span<const int64_t> values);

std::string seconds_text(std::chrono::milliseconds t);  // "1.5 s"

}  // namespace dtensor::internal
