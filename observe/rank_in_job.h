// This process's rank in a job: for the names of the files that it writes (traces, flight dumps) and for their
// contents, which may be needed before there is a call with ranks. Not for other uses: a call has its own ranks. A Job
// sets it when it begins.
#pragma once

#include <cstdint>

namespace dtensor::internal {

void set_rank_in_job(int64_t rank) noexcept;
int64_t rank_in_job() noexcept;  // -1: this process is not one of a job

}  // namespace dtensor::internal
