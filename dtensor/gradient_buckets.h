// How the gradients of a backward are reduced: how many in one collective, in which order and dtype, and when.
//
//   set_gradient_buckets(world, {.max_bytes = 8 << 20, .reduce_dtype = at::kFloat, .overlap = true});
//
// The parameter gradients of one backward() wait in a bucket. A full bucket is reduced, and so is the rest at the end
// of the backward: large buckets take fewer collectives, small ones begin earlier. Which collectives run, and in which
// order, follows from the program and these options, which all ranks set alike.
//
// Source: torch.nn.parallel.DistributedDataParallel (bucket_cap_mb); Li et al., PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/world.h"

namespace dtensor {

constexpr int64_t kDefaultGradientBucketBytes = int64_t{25} << 20;  // the default of bucket_cap_mb

struct GradientBucketOptions {
  // The bytes of gradients that a rank reduces together, in the gradients' own dtype. 0: every gradient is reduced by
  // itself, as is one that is larger than the limit. Also limits the inputs that deferred gradients of embedding tables
  // keep alive.
  int64_t max_bytes = kDefaultGradientBucketBytes;
  // Floating-point gradients are cast to this dtype, reduced, and cast back: at::kFloat for bfloat16 parameters.
  // nullopt: reduced in their own, as are those that backward() records with create_graph. Groups of fully_shard()
  // have their own, and so have modules of parallelize_module() with one (MixedPrecision::reduce_dtype).
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // A full bucket, or group of fully_shard(), only begins its reduction, and backward() waits for all of them before it
  // returns. Reading such a .grad earlier, as in a hook, waits for its sum; other handles of its memory see that when
  // backward() returns, and a .grad of a fully_shard() group from before the backward is put aside until then. If one
  // fails, all gradients of buckets are as before the backward, but those that were Partial then, or need no reduction.
  // Their parts and casts stay alive until then, whatever max_bytes. The collective goes on while operators run where
  // redistribute() with async_op does so: between processes, and not for a bucket with a gradient that takes several.
  bool overlap = false;
  // These parameters fill buckets of up to max_bytes in this order, and each bucket is reduced when the last of its
  // gradients has arrived, or at the end of the backward if some parameter got none: where buckets end then does not
  // depend on the graph. Other parameters join a bucket as their gradients arrive, and so do all by default. Parameters
  // of a fully_shard() group stay in that. A parameter that the program drops leaves its bucket: drop it on all ranks.
  std::vector<at::Tensor> order = {};
};

// Sets the options of a world, outside backward(). Keeps no parameter alive; one whose data is replaced by set_data()
// stays in its bucket.
// Errors, after which nothing has changed: (ValueError) max_bytes < 0; a reduce_dtype that is not floating-point; a
// tensor in `order` that is undefined, of another world, listed twice, or no leaf; (TypeError) a plain one.
void set_gradient_buckets(const World& world, const GradientBucketOptions& options);
// Those in effect; `order`: the parameters that are alive.
GradientBucketOptions gradient_buckets(const World& world);

// Sets and returns max_bytes alone. Error (ValueError): a negative number.
void limit_gradient_bucket_bytes(const World& world, int64_t bytes);
int64_t gradient_bucket_bytes(const World& world);

}  // namespace dtensor
