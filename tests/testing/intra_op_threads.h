// A number of LibTorch's threads for computation, until the end of the block; tests have one otherwise.
#pragma once

#include <ATen/Parallel.h>

namespace dtensor::testing {

class IntraOpThreads {
 public:
  explicit IntraOpThreads(int n) { at::set_num_threads(n); }
  ~IntraOpThreads() { at::set_num_threads(before_); }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace dtensor::testing
