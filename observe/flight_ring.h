// The entries of the flight recorder, as dumps read them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_event.h"

namespace dtensor::internal {

// One group of ranks, as one communicator calls it.
struct FlightGroup {
  int64_t id = 0;
  std::string name, description;  // "0-3", "tp"
  std::vector<int64_t> ranks;
  bool in_process = false;                           // several of its ranks are owned here: in-process worlds
  int64_t enqueued = 0, started = 0, completed = 0;  // the last call
};

struct FlightRecord {
  uint64_t id = 0;  // from 1; 0: empty
  std::shared_ptr<FlightGroup> group;
  int64_t sequence = 0;
  Collective collective = Collective::kBarrier;
  int64_t created = 0, started = 0, completed = 0;  // ns since 1970 in copies of the ring; 0: not yet
  bool retired = false;                             // nothing will happen to it any more
  bool awaited = true;                              // false: it was begun, and nothing waits for its results
  bool taken_back = false;
  bool backward = false, implicit = false;
  int64_t rank = 0, thread = 0, bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // These are assigned in place, so that an entry uses the memory of the one that it replaces.
  std::string op, argument, module_path, mesh_dims;
  std::vector<int64_t> sizes;  // of each tensor the number of dims, then the dims
  std::vector<c10::ScalarType> dtypes;
  size_t inputs = 0;                                  // of these tensors; the others are outputs
  std::shared_ptr<const LayoutChange> layout_change;  // as CommEvent's
  int more_tensors = 0;
  std::optional<std::string> tensor;  // their text, in copies of the ring
};

// The entries and groups there are, oldest first. False, and nothing, if another thread holds the ring and `wait` is
// false: then a second is waited, not more.
bool copy_flight_ring(bool wait, std::vector<FlightRecord>& records, std::vector<FlightGroup>& groups);
bool flight_recorder_is_on();
// A dump, as of dump_flight_recorder(), of this process as rank `rank` of its job. Waits a second at most.
std::string flight_dump_text(int64_t rank);
// If DTENSOR_FLIGHT_FILE is set.
void arm_flight_signals() noexcept;

}  // namespace dtensor::internal
