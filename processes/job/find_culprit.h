// Whose fault it is that something does not end which needs several ranks. Internal to Job.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "processes/job/activity.h"
#include "processes/job/job_board.h"

namespace dtensor {

// Why rank `other` cannot come to `mine`, as far as the store and this host know; "" if nothing is known against it.
// `only_final`: without what may still change, that it has not come to the job yet or is stopped.
std::string find_fault(JobBoard& board, int64_t other, const Activity& mine, bool only_final);

// Asks the `others` what they are doing: the first who has not come to `mine` or does not answer within 1.5 s, and its
// fault.
std::optional<std::pair<int64_t, std::string>> find_missing(JobBoard& board, absl::Span<const int64_t> others,
                                                            const Activity& mine, std::chrono::milliseconds waited);

// Where members have left the job before `mine`, in which rank `rank` waits: if those who left are more than half of
// the members, a rank that has come to `mine`, as its program has made a call too many; else one who left. Waits up
// to 1.5 s for the others to say, or do, the one or the other. nullopt: no one has left so.
std::optional<std::pair<int64_t, std::string>> find_leaver(JobBoard& board, absl::Span<const int64_t> members,
                                                           int64_t rank, const Activity& mine);

// Whom to blame where ranks differ, by position in `values`: one of those who are fewest; where all are as many, the
// last.
int64_t odd_one_out(absl::Span<const int64_t> values);

std::string seconds_text(std::chrono::milliseconds t);  // "1.5 s"

}  // namespace dtensor
