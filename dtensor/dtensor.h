// Distributed tensors for LibTorch: everything a program needs. Include <torch/torch.h> as well for nn and optim.
//
//   auto world = dtensor::World::local(4);
//   dtensor::DeviceMesh mesh(world, {2, 2}, {"dp", "tp"});
//   auto table = dtensor::distribute_tensor(torch::randn({50257, 512}), mesh, {dtensor::Replicate(), dtensor::Shard(0)});
//   auto y = torch::embedding(table, ids);            // plain ATen calls on distributed tensors
//   std::cout << dtensor::DTensor(y);
//
// dtensor/distributed_module.h (templates over torch::nn, so apart) has the modules with input and output hooks.
#pragma once

#include "checkpoint/checkpoint_series.h"
#include "checkpoint/serialize.h"
#include "dtensor/activation_checkpoint.h"
#include "dtensor/collectives.h"
#include "dtensor/context_parallel.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/experts.h"
#include "dtensor/factories.h"
#include "dtensor/forbid_whole_gather.h"
#include "dtensor/from_local.h"
#include "dtensor/fully_shard.h"
#include "dtensor/ghost_width.h"
#include "dtensor/grad_scaler.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/head_tail.h"
#include "dtensor/kv_cache.h"
#include "dtensor/measure_operators.h"
#include "dtensor/meta_device.h"
#include "dtensor/mixed_precision.h"
#include "dtensor/optimize_layouts.h"
#include "dtensor/overlap_communication.h"
#include "dtensor/parallel_ranks.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/pipeline.h"
#include "dtensor/predict_module_layouts.h"
#include "dtensor/predict_step.h"
#include "dtensor/redistribute.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"
#include "dtensor/search_layouts.h"
#include "dtensor/sequence_slots.h"
#include "dtensor/version.h"
#include "dtensor/zero_redundancy_optimizer.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "observe/comm_trace.h"
#include "observe/layout_picture.h"
#include "observe/layout_text.h"
#include "placement/placement.h"
#include "plan/known_clusters.h"
#include "plan/redistribute_plan.h"
#include "plan/spec.h"
#include "propagation/strategy_cache.h"
