#include "observe/rank_in_job.h"

#include <atomic>

namespace dtensor::internal {
namespace {

std::atomic<int64_t> rank_of_process{-1};

}  // namespace

void set_rank_in_job(int64_t rank) noexcept { rank_of_process.store(rank); }
int64_t rank_in_job() noexcept { return rank_of_process.load(); }

}  // namespace dtensor::internal
