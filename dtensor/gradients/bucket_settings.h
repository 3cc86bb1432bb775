// What set_gradient_buckets() has set for a world.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dtensor/gradients/leaf_group.h"
#include "mesh/world.h"

namespace dtensor::internal {

// As of GradientBucketOptions, but for the order.
struct BucketSettings {
  int64_t max_bytes = int64_t{25} << 20;  // kDefaultGradientBucketBytes
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  bool overlap = false;
};

// What a world keeps of its last set_gradient_buckets(): World::attachment<GradientBuckets>().
struct GradientBuckets {
  std::mutex mutex;
  BucketSettings settings;                               // guarded by mutex
  std::vector<std::weak_ptr<const LeafGroup>> in_order;  // guarded by mutex; each belongs to its parameters
};

// Thread-safe.
BucketSettings bucket_settings(const World& world);

// What a gradient in the layout of `t` counts against max_bytes: its largest part, so that all ranks count alike.
int64_t bytes_in_bucket(const at::Tensor& t);

}  // namespace dtensor::internal
