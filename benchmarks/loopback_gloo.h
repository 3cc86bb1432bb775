// c10d's Gloo between the ranks of a job, on the loopback interface.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtensor::benchmarks {

// The ranks meet in `store`.
c10::intrusive_ptr<c10d::Backend> make_loopback_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

}  // namespace dtensor::benchmarks
