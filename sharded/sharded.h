// The ShardedTensor family in one header.
#pragma once

#include "sharded/chunk_sharding_spec.h"
#include "sharded/dtensor_bridge.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/errors.h"
#include "sharded/factories.h"
#include "sharded/from_shards.h"
#include "sharded/moves.h"
#include "sharded/remote_shard.h"
#include "sharded/shard_tensor.h"
#include "sharded/sharded_tensor.h"
#include "sharded/state_dict.h"
#include "sharded/tensor_ops.h"
