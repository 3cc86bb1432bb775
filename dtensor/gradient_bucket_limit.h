// How many gradients of a backward are reduced in one collective.
//
// The parameter gradients of one backward() wait in a bucket. A full bucket is reduced, and so is the rest at the end
// of the backward: large buckets take fewer collectives, small ones begin earlier.
//
// Source: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb.
#pragma once

#include <cstdint>

#include "mesh/world.h"

namespace dtensor {

constexpr int64_t kDefaultGradientBucketBytes = int64_t{25} << 20;  // the default of bucket_cap_mb

// The bytes of gradients that a rank reduces together, 25 MiB by default. 0: every gradient is reduced by itself, as is
// one that is larger than the limit. Also limits the inputs that deferred gradients of embedding tables keep alive. All
// ranks set the same, outside backward(), at the same place of the program, as it decides what is communicated.
// Error (ValueError): a negative number.
void limit_gradient_bucket_bytes(const World& world, int64_t bytes);
int64_t gradient_bucket_bytes(const World& world);

}  // namespace dtensor
