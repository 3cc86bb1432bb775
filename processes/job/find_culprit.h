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

std::string seconds_text(std::chrono::milliseconds t);  // "1.5 s"

}  // namespace dtensor
