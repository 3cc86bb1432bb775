// The rank that this process is of a job: for the names of the files that it writes (traces, flight dumps) and for what
// these say of it, which they may have to before there is a call whose ranks could tell. Nothing else is to ask: a call
// knows its own ranks. Internal: a Job sets it when it begins.
#pragma once

#include <cstdint>

namespace dtensor {

void set_rank_in_job(int64_t rank) noexcept;
int64_t rank_in_job() noexcept;  // -1: this process is not one of a job

}  // namespace dtensor
