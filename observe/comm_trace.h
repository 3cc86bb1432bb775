// A timeline of communication, for Perfetto (ui.perfetto.dev) or chrome://tracing: Chrome's trace format, with Kineto's
// names for the properties of collectives, and ours.
//
//   CommTrace trace("step.json");                  // communication of this thread until the end of the block
//   DTENSOR_TRACE=trace_%r.json ./my_program       // everything, on all threads
//
// One row per rank. In an abstract world there is rank 0, with one collective behind the other as long as the cost
// model says. The file is complete JSON at any time, also when the process is killed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/scope.h"

namespace dtensor {

class CommTrace {
 public:
  // Writes to `path`, in which "%r" becomes the rank of this process in its job, 0 without a job. In a job, where there
  // is no "%r", the rank comes before the ending: "step.3.json". Error (c10::Error): it cannot be written.
  explicit CommTrace(const std::string& path);
  ~CommTrace();

  const std::string& path() const;  // of the file

 private:
  class Writer;
  friend struct ProcessTrace;
  std::unique_ptr<Writer> writer_;
  internal::ScopeGuard guard_;
};

}  // namespace dtensor
