// What set_gradient_buckets() has set for a world, but for the order. Implemented beside it, in gradient_buckets.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "mesh/world.h"

namespace dtensor::internal {

// As of GradientBucketOptions.
struct BucketSettings {
  int64_t max_bytes;
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  bool overlap = false;
};

// Thread-safe.
BucketSettings bucket_settings(const World& world);

// What a gradient in the layout of `t` counts against max_bytes: its largest part, so that all ranks count alike.
int64_t bytes_in_bucket(const at::Tensor& t);

}  // namespace dtensor::internal
