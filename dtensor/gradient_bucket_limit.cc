#include "dtensor/gradient_bucket_limit.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace dtensor {
namespace {

struct GradientBucketLimit {
  std::atomic<int64_t> bytes{kDefaultGradientBucketBytes};
};

}  // namespace

void limit_gradient_bucket_bytes(const World& world, int64_t bytes) {
  TORCH_CHECK_VALUE(bytes >= 0, "[limit_gradient_bucket_bytes] ", bytes,
                    " bytes: give a limit per rank, or 0 to reduce every gradient by itself");
  world.attachment<GradientBucketLimit>().bytes = bytes;
}

int64_t gradient_bucket_bytes(const World& world) { return world.attachment<GradientBucketLimit>().bytes; }

}  // namespace dtensor
