// Values and calls that the tests of the communicators share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "mesh/device_mesh.h"

namespace dtensor {

// Small values that differ between ranks and repeat exactly; both values of bool.
inline at::Tensor values(at::IntArrayRef shape, at::ScalarType dtype, int64_t seed) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  auto numbers = at::arange(numel, at::kLong).mul(7).add(3 * seed).remainder(5);
  if (dtype == at::kBool) numbers = numbers.remainder(2);
  return numbers.to(dtype).reshape(shape);
}

inline internal::CommCall call_on(const DeviceMesh& mesh, absl::Span<const int64_t> dims) {
  internal::CommCall call;
  call.group = &mesh.group(dims);
  call.ranks = mesh.local_ranks();
  return call;
}

struct Recorder : internal::CommListener {
  std::vector<std::pair<CommEvent, bool>> events;
  void on_comm(const CommEvent& event, bool before) override { events.emplace_back(event, before); }
};

}  // namespace dtensor
