// Remembers the last collectives of this process, so that a job that hangs or fails can be looked into.
//
//   DTENSOR_FLIGHT_FILE=/tmp/flight_ ./my_program     # a dump per rank when it fails: /tmp/flight_0, /tmp/flight_1, ...
//   kill -USR1 PID                                    # one now; the program goes on
//   ./bazelw run //tools:flight -- /tmp/flight_*      # where the ranks part
//
// A ring of DTENSOR_FLIGHT_RECORDER entries (2000; 0 for none), fed by every communicator that has data here. Dumps are
// JSON with the field names of PyTorch's flight recorder, version 2.10; `tensor`, `cause`, `collective`, `mesh_dims`
// and `bytes` are ours. Groups are called by their ranks, "0-3", and counted as the errors of processes do.
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace dtensor {

void dump_flight_recorder(std::ostream& os);
// Writes a file, whole or not at all. Error (c10::Error): it cannot be written.
void dump_flight_recorder(const std::string& path);

// Writes the file DTENSOR_FLIGHT_FILE + rank and reports that on stderr, if that variable is set. Called when a failure
// of the job is detected; may be called from a std::terminate handler, and waits no longer than a second for other
// threads.
void dump_flight_recorder_on_failure(int64_t rank) noexcept;

// Called when this process becomes one of a job whose collectives may take `timeout`, which dumps say; 0: not known. If
// DTENSOR_FLIGHT_FILE is set, SIGUSR1 writes the dump from now on, and SIGTERM does so before it ends the process; a
// program that handles one of them itself keeps its handler. Does what is needed again in a fork's child. Without this
// call the first collective does the same.
void prepare_flight_recorder(std::chrono::milliseconds timeout = {}) noexcept;

}  // namespace dtensor
