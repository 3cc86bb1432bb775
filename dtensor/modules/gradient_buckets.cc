#include "dtensor/gradient_buckets.h"

#include <c10/util/Exception.h>

#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "dtensor/gradients/bucket_settings.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

static_assert(BucketSettings().max_bytes == kDefaultGradientBucketBytes);

constexpr char kSetBuckets[] = "[set_gradient_buckets] ";

void check_order(const World& world, const std::vector<at::Tensor>& order) {
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  for (size_t i = 0; i < order.size(); ++i) {
    const at::Tensor& t = order[i];
    TORCH_CHECK_VALUE(t.defined(), kSetBuckets, "order[", i, "] is undefined: give the parameters of a module");
    TORCH_CHECK_TYPE(is_dtensor(t), kSetBuckets, "order[", i, "] is a plain tensor: distribute the module first");
    const Spec& spec = *spec_of(t);
    TORCH_CHECK_VALUE(spec.mesh().world() == world, kSetBuckets, "order[", i, "] is ", spec.to_string(),
                      " of another world: set the buckets of each world by itself");
    TORCH_CHECK_VALUE(t.is_leaf(), kSetBuckets, "order[", i, "] is ", spec.to_string(),
                      ", a result of operators, which gets no .grad: give the parameters that it was computed from");
    TORCH_CHECK_VALUE(seen.insert(t.unsafeGetTensorImpl()).second, kSetBuckets, "order[", i, "], ", spec.to_string(),
                      ", is listed twice");
  }
}

// Cuts the list where a bucket is full.
std::vector<std::weak_ptr<const LeafGroup>> make_buckets(const std::vector<at::Tensor>& order, int64_t max_bytes) {
  std::vector<std::weak_ptr<const LeafGroup>> buckets;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::vector<at::Tensor> members;
    for (int64_t bytes = 0; end < order.size(); ++end) {
      bytes += bytes_in_bucket(order[end]);
      if (end > begin && bytes > max_bytes) break;
      members.push_back(order[end]);
    }
    const auto bucket = std::make_shared<const LeafGroup>(members);
    for (const at::Tensor& t : members) meta_without_sync(t).storage->parameter.make().gradient_bucket = bucket;
    buckets.push_back(bucket);
  }
  return buckets;
}

std::vector<at::Tensor> members_of(const std::vector<std::weak_ptr<const LeafGroup>>& buckets) {
  std::vector<at::Tensor> members;
  for (const auto& weak : buckets) {
    const auto bucket = weak.lock();
    if (!bucket) continue;
    for (const at::Tensor& t : bucket->leaves()) {
      if (is_dtensor(t) && meta_without_sync(t).storage->parameter->gradient_bucket == bucket) members.push_back(t);
    }
  }
  return members;
}

}  // namespace

void set_gradient_buckets(const World& world, const GradientBucketOptions& options) {
  TORCH_CHECK_VALUE(options.max_bytes >= 0, kSetBuckets, "max_bytes is ", options.max_bytes,
                    ": give a limit per rank, or 0 to reduce every gradient by itself");
  TORCH_CHECK_VALUE(!options.reduce_dtype || c10::isFloatingType(*options.reduce_dtype), kSetBuckets,
                    "reduce_dtype is ", options.reduce_dtype ? c10::toString(*options.reduce_dtype) : "",
                    ": give a floating-point dtype such as Float, or none");
  check_order(world, options.order);
  auto& buckets = world.attachment<GradientBuckets>();
  std::lock_guard lock(buckets.mutex);
  for (const at::Tensor& t : members_of(buckets.in_order))
    meta_without_sync(t).storage->parameter.make().gradient_bucket = nullptr;
  buckets.in_order = make_buckets(options.order, options.max_bytes);
  buckets.settings = {options.max_bytes, options.reduce_dtype, options.overlap};
}

GradientBucketOptions gradient_buckets(const World& world) {
  auto& buckets = world.attachment<GradientBuckets>();
  std::lock_guard lock(buckets.mutex);
  const BucketSettings& s = buckets.settings;
  return {s.max_bytes, s.reduce_dtype, s.overlap, members_of(buckets.in_order)};
}

void limit_gradient_bucket_bytes(const World& world, int64_t bytes) {
  TORCH_CHECK_VALUE(bytes >= 0, "[limit_gradient_bucket_bytes] ", bytes,
                    " bytes: give a limit per rank, or 0 to reduce every gradient by itself");
  GradientBucketOptions options = gradient_buckets(world);
  options.max_bytes = bytes;
  set_gradient_buckets(world, options);
}

int64_t gradient_bucket_bytes(const World& world) { return bucket_settings(world).max_bytes; }

}  // namespace dtensor
