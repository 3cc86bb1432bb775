// How many GPUs there are, for tests that skip themselves where they are too few.
#pragma once

#include <ATen/Context.h>

#include <cstdint>

#include "tests/testing/catch2.h"

namespace dtensor {

inline int64_t gpus() { return at::getNumGPUs(); }

inline bool fewer_gpus_than(int64_t n) {
  if (gpus() >= n) return false;
  WARN("SKIPPED: needs " << n << " CUDA device" << (n == 1 ? "" : "s") << ", here are " << gpus());
  return true;
}

}  // namespace dtensor
