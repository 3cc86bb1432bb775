#include "dtensor/gradients/bucket_settings.h"

#include "dtensor/tensor/representation.h"
#include "plan/largest_part.h"

namespace dtensor::internal {

BucketSettings bucket_settings(const World& world) {
  auto& buckets = world.attachment<GradientBuckets>();
  std::lock_guard lock(buckets.mutex);
  return buckets.settings;
}

int64_t bytes_in_bucket(const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  return largest_part_bytes(spec.meta(), Layout(spec.mesh(), spec.placements()));
}

}  // namespace dtensor::internal
