// Measures the memory of tensors on the CPU.
//
//   auto memory = std::make_shared<AllocatedMemory>();
//   c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>

namespace dtensor::testing {

// Bytes of tensors that this thread allocates, from now on. Memory freed by another thread stays counted: Gloo's
// threads hold the buffers of an exchange slightly longer than it takes.
class AllocatedMemory : public c10::MemoryReportingInfoBase {
 public:
  int64_t peak() const { return peak_; }
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    live_ += size;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace dtensor::testing
