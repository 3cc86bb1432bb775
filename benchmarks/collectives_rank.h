// One process of the jobs that benchmarks/collectives compares with.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace dtensor::benchmarks {

constexpr int kRanks = 2;

// Sizes of float32 tensors.
const std::vector<int64_t>& sizes_in_bytes();

// Seconds of one call: the median of many, or of some for large sizes. `calls`: so many, else as many as fit a tenth of
// a second.
double time_of(const std::function<void()>& call, int calls = 0);
// How many calls take about a tenth of a second, all ranks alike.
int calls_for(int64_t bytes);

// These print "BYTES SECONDS" per size on rank 0, for an all-reduce; the exit code.
int run_gloo_rank();  // c10d's own all-reduce, under tools/launch
int run_ours_rank();  // ours over Gloo, under tools/launch
int run_mpi_rank();   // Open MPI's, under mpirun

}  // namespace dtensor::benchmarks
