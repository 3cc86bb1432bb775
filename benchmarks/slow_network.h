// A c10d backend for the benchmark of overlap: Gloo, as slow as a network of a given bandwidth. Ranks of one machine
// exchange data by copies, which need the cores that compute; a network does not.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>

namespace c10d {
class ProcessGroup;
}

namespace dtensor::benchmarks {

// All ranks of a job, which meet in the file `store`. Exchanges are done when Gloo has done them and a link that
// carries one after the other at `bytes_per_second` would have delivered all that this rank receives, from its call on,
// or from when the exchange before was done: ranks that call at about the same time are assumed.
c10::intrusive_ptr<c10d::ProcessGroup> make_slow_network(int rank, int size, const std::string& store,
                                                         double bytes_per_second);

}  // namespace dtensor::benchmarks
