// Counts the bytes of distributed tensors that are alive on one rank (the rank with the largest shards), so that peak
// memory is available for any world, an abstract one included. Views share their base's bytes. Thread-safe.
//
//   world.memory().reset_peak();
//   train_step();
//   std::cout << world.memory().peak_bytes() << " bytes at most\n";
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace dtensor {

class MemoryMeter {
 public:
  int64_t live_bytes() const { return live_.load(); }
  int64_t peak_bytes() const { return peak_.load(); }
  // Starts a new measurement: the peak becomes the present live bytes.
  void reset_peak() { peak_.store(live_.load()); }

  void add(int64_t bytes) {
    const int64_t live = live_.fetch_add(bytes) + bytes;
    if (live > peak_.load()) raise_peak(live);
  }
  // A temporary that is alive only inside one step: raises the peak, not what is alive.
  void touch(int64_t bytes) { raise_peak(live_.load() + bytes); }

 private:
  void raise_peak(int64_t bytes);

  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

namespace internal {

// Holds `bytes` of a meter for as long as it lives. Tensors that share storage share one hold. The meter must outlive
// it.
class MemoryHold {
 public:
  MemoryHold(MemoryMeter& meter, int64_t bytes) : meter_(meter), bytes_(bytes) { meter_.add(bytes_); }
  ~MemoryHold() { meter_.add(-bytes_); }
  MemoryHold(const MemoryHold&) = delete;
  MemoryHold& operator=(const MemoryHold&) = delete;
  MemoryMeter& meter() const { return meter_; }
  void resize(int64_t bytes) {
    meter_.add(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  MemoryMeter& meter_;
  int64_t bytes_;
};

}  // namespace internal

}  // namespace dtensor
