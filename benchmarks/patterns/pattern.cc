#include "benchmarks/patterns/pattern.h"

namespace dtensor::benchmarks {
namespace {

Traffic one_call(double bytes, int64_t ranks) {
  if (ranks == 1) return {};
  return {1, bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks)};
}

}  // namespace

Traffic all_reduce(double bytes, int64_t ranks) { return one_call(2 * bytes, ranks); }
Traffic all_gather(double bytes, int64_t ranks) { return one_call(bytes, ranks); }
Traffic reduce_scatter(double bytes, int64_t ranks) { return one_call(bytes, ranks); }
Traffic all_to_all(double local_bytes, int64_t ranks) { return one_call(local_bytes, ranks); }

}  // namespace dtensor::benchmarks
