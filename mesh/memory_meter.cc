#include "mesh/memory_meter.h"

namespace dtensor {

void MemoryMeter::raise_peak(int64_t bytes) {
  int64_t seen = peak_.load();
  while (seen < bytes && !peak_.compare_exchange_weak(seen, bytes)) {
  }
}

}  // namespace dtensor
