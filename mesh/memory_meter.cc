#include "mesh/memory_meter.h"

namespace dtensor {
namespace {

void raise_to(std::atomic<int64_t>& peak, int64_t bytes) {
  int64_t seen = peak.load();
  while (seen < bytes && !peak.compare_exchange_weak(seen, bytes)) {
  }
}

}  // namespace

void MemoryMeter::add(int64_t bytes) { raise_to(peak_, live_.fetch_add(bytes) + bytes); }

void MemoryMeter::touch(int64_t bytes) { raise_to(peak_, live_.load() + bytes); }

}  // namespace dtensor
