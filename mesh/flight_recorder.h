// Remembers the last collectives of this process, so that a job that hangs or fails can be looked into.
//
//   DTENSOR_FLIGHT_FILE=/tmp/flight_ ./my_program     # a dump per rank when it fails: /tmp/flight_0, /tmp/flight_1, ...
//   kill -USR1 PID                                    # one now; the program goes on
//   ./bazelw run //tools:flight -- /tmp/flight_*      # where the ranks part
//
// A ring of DTENSOR_FLIGHT_RECORDER entries (2000; 0 for none), fed by every communicator that has data here. Dumps are JSON
// with the field names of PyTorch's flight recorder, version 2.10; `tensor`, `cause`, `collective`, `mesh_dims` and `bytes` are
// ours. Groups are called by their ranks, "0-3", and counted as the errors of processes do. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "mesh/communicator.h"

namespace dtensor {

void dump_flight_recorder(std::ostream& os);
// Writes a file, whole or not at all. Error (c10::Error): it cannot be written.
void dump_flight_recorder(const std::string& path);

// Writes the file DTENSOR_FLIGHT_FILE + rank and says so on stderr, if that variable is set. Whoever finds out that a job
// fails calls this; it may be called from a std::terminate handler, and waits no longer than a second for other threads.
void dump_flight_recorder_on_failure(int64_t rank) noexcept;

// Tells which rank this process is, and how long its collectives may take. If DTENSOR_FLIGHT_FILE is set, SIGUSR1 writes the
// dump from now on, and SIGTERM does so before it ends the process; a program that handles one of them itself keeps its
// handler. Does what is needed again in a fork's child. Without this call the first collective does the same.
void prepare_flight_recorder(int64_t rank, std::chrono::milliseconds timeout = {}) noexcept;
// The rank that prepare_flight_recorder() was told last; -1 if it was not called.
int64_t process_rank();

// "0-3", "0,2,4": how a group is called.
std::string ranks_text(absl::Span<const int64_t> ranks);

// The groups of one communicator, and how often each was called. Internal, as is all below.
class FlightGroups;
std::shared_ptr<FlightGroups> make_flight_groups();

// The entry of one collective, from before it runs until after it. An entry that is destroyed before completed() failed, or if
// started() was not called either, never ran: then it is taken back.
class FlightEntry {
 public:
  // `runs`: as if started() were called at once.
  FlightEntry(FlightGroups& groups, const CommView& view, bool backward, bool runs);
  ~FlightEntry();
  FlightEntry(FlightEntry&& other) noexcept
      : id_(std::exchange(other.id_, 0)), sequence_(other.sequence_), completed_(other.completed_) {}
  FlightEntry& operator=(FlightEntry&&) = delete;

  // Which call of its group it is, from 1; 0 if nothing is recorded.
  int64_t sequence() const { return sequence_; }
  void started();
  void completed();

 private:
  uint64_t id_ = 0;  // in the ring; 0: not recorded
  int64_t sequence_ = 0;
  bool completed_ = false;
};

}  // namespace dtensor
