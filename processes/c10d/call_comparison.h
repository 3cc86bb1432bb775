// Compares what the ranks of a group are about to do or have done, as DTENSOR_DEBUG asks for: when to compare. What is
// compared, and the error, are in call_mismatch.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "processes/c10d/call_mismatch.h"
#include "processes/c10d/link_call.h"

namespace dtensor::internal {

class CallComparison {
 public:
  // Error (c10::Error): DTENSOR_DEBUG has a value that it does not know.
  CallComparison() : level_(debug_level()) {}

  // Before every call, which link.calls counts already. Returns the fingerprint that is to be compared with its data;
  // nullopt: none is. Errors: as of Job::run, and that the ranks differ.
  std::optional<uint64_t> before(const LinkCall& call) const;
  // Makes a barrier, which is a comparison.
  void at_barrier(const LinkCall& call) const;

 private:
  const DebugLevel level_;
};

}  // namespace dtensor::internal
