// Jobs of a benchmark: processes of the same program that each are a rank and time calls by turns. Rank 0 writes down
// what it saw.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::benchmarks {

// Seconds of a call, the median of many, by the name of the way of calling.
using Times = std::map<std::string, double>;
// The times of each workload, by its name.
using Figures = std::map<std::string, Times>;
// One of them, or not a number.
double seconds_of(const Figures& figures, const std::string& workload, const std::string& way);

struct Job {
  std::string flags;  // that tell the program to be a rank
  int ranks;
  bool mpi = false;  // under mpirun where that is installed; else under this project's launcher
};
// Runs a job and returns what its rank 0 measured.
// Errors: there is no launcher at --launch (UsageError); the job fails (c10::Error), after what the ranks printed.
Figures run_job(const Job& job);

// In a rank of a job.
int rank_of_job();
std::string store_of_job();  // a file that does not exist, in which peers can meet

// A way of calling the workload: this library's, a peer's.
struct Way {
  std::string name;
  std::function<void()> call;  // that all ranks make
};
// Times the ways by turns: `calls` calls of each in a turn, after one that does not count. All ranks make as many.
void time_ways(const std::string& workload, const std::vector<Way>& ways, int turns, int calls);

}  // namespace dtensor::benchmarks
