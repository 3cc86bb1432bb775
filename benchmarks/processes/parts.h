// The parts of the benchmark. Each has calls that the ranks of a job make, and figures that follow from their times.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "benchmarks/gates.h"
#include "benchmarks/job.h"
#include "benchmarks/processes/peers.h"
#include "mesh/device_mesh.h"

namespace dtensor::benchmarks {

// What a rank of a job has.
struct RankSetup {
  const DeviceMesh& mesh;  // of one dim
  const std::vector<std::unique_ptr<Peer>>& peers;
  Scalapack* scalapack;  // null: there is none
};

inline constexpr char kOurs[] = "ours";  // the name of our way in a job; those of others are in peers.h

struct Part {
  std::string name;
  std::vector<int> ranks;                   // a job of each
  std::vector<std::string> optional_peers;  // that run where they are installed
  // Times workloads with time_ways(). All ranks make the same calls.
  void (*run_rank)(const RankSetup& setup);
  // Adds rows for a job of so many ranks, whose workloads have the names that run_rank() gave them.
  void (*report)(int ranks, const Figures& figures, Gates& gates);
};

// What a job measured, and the same calls with all its ranks in this process.
struct Measured {
  std::string workload;
  const Figures& figures;  // of the job
  double in_one_process;   // seconds
};
// These add a row each, of our calls next to those of `peer` in the job; none where the peer took no part in it.
// Error (c10::Error): the job has no such figure, although ours or Gloo's are always there.
// In one process: those of the peer are to take `gate` times as long (0: no gate).
void add_row_of_one_process(const Measured& m, const std::string& peer, double gate, Gates& gates);
// In the job.
void add_row_of_processes(const Measured& m, const std::string& peer, Gates& gates);

Part collectives_part();   // of the communicator
Part redistribute_part();  // redistribute()
Part mlp_part();           // a step of a tensor-parallel MLP, which is small

}  // namespace dtensor::benchmarks
