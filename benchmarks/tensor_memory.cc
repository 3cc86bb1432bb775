#include "benchmarks/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace dtensor::benchmarks {
namespace {

// Counts what tensors take in this process.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = base_->raw_allocate(bytes);
    const std::lock_guard lock(mutex_);
    if (data != nullptr) sizes_[data] = static_cast<int64_t>(bytes);
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {data, data, &CountingAllocator::free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    sizes_.clear();
    live_ = peak_ = 0;
  }
  int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

  // Outlives all tensors.
  static CountingAllocator& instance() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

 private:
  static void free(void* data) {
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(data);
      if (found != self.sizes_.end()) {  // neither null nor forgotten
        self.live_ -= found->second;
        self.sizes_.erase(found);
      }
    }
    if (data == nullptr) return;
    self.base_->raw_deallocate(data);
  }

  c10::Allocator* const base_ = c10::GetDefaultCPUAllocator();
  mutable std::mutex mutex_;
  absl::flat_hash_map<void*, int64_t> sizes_;  // guarded by mutex_
  int64_t live_ = 0, peak_ = 0;                // likewise
};

c10::DeviceAllocator& gpu(c10::Device device) { return *c10::getDeviceAllocator(device.type()); }

c10::DeviceIndex index(c10::Device device) { return std::max<c10::DeviceIndex>(device.index(), 0); }

c10::CachingAllocator::Stat bytes(c10::Device device) {  // of all sizes
  return gpu(device).getDeviceStats(index(device)).requested_bytes[0];
}

}  // namespace

TensorMemory::TensorMemory(c10::Device device) : device_(device) {
  if (device.is_cpu()) c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
}

void TensorMemory::begin() {
  if (device_.is_cpu()) return CountingAllocator::instance().forget();
  before_ = bytes(device_).current;
}

void TensorMemory::reset_peak() {
  if (device_.is_cpu()) return CountingAllocator::instance().reset_peak();
  gpu(device_).resetPeakStats(index(device_));
}

int64_t TensorMemory::peak() {
  return device_.is_cpu() ? CountingAllocator::instance().peak() : bytes(device_).peak - before_;
}

}  // namespace dtensor::benchmarks
