// Records every collective of a communicator, independently of listeners. The flight recorder is one; a program without
// it records nothing.
#pragma once

#include <cstdint>
#include <memory>

namespace dtensor::internal {

struct CommView;  // comm_call.h

// One collective, from before it runs until after it. One that is destroyed before completed() or not_awaited() failed,
// or if started() was not called either, never ran.
class CallRecord {
 public:
  virtual ~CallRecord() = default;
  virtual int64_t sequence() const = 0;  // number of the call in its group, from 1; 0: not counted
  virtual void started() = 0;
  virtual void completed() = 0;
  // It was begun, and nothing will wait for its results, as with a prefetched parameter that is not used.
  virtual void not_awaited() = 0;
};

// For one communicator. Thread-safe.
class CallRecorder {
 public:
  virtual ~CallRecorder() = default;
  // `runs`: as if started() were called at once. Records may outlive the recorder. May be null.
  virtual std::shared_ptr<CallRecord> record(const CommView& view, bool backward, bool runs) = 0;
};

// Makes the recorder of every communicator from now on. Called by the static initialisation of the recorder.
using MakeCallRecorder = std::unique_ptr<CallRecorder> (*)();
void set_call_recorder(MakeCallRecorder make);
// Null where none was set.
std::unique_ptr<CallRecorder> make_call_recorder();

}  // namespace dtensor::internal
