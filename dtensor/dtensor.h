// Distributed tensors for LibTorch: everything a program needs. Include <torch/torch.h> as well for nn and optim.
//
//   auto world = dtensor::World::local(4);
//   dtensor::DeviceMesh mesh(world, {2, 2}, {"dp", "tp"});
//   auto table = dtensor::distribute_tensor(torch::randn({50257, 512}), mesh, {dtensor::Replicate(),
//   dtensor::Shard(0)}); auto y = torch::embedding(table, ids);            // plain ATen calls on distributed tensors
//   std::cout << dtensor::DTensor(y);
//
// dtensor/distributed_module.h (templates over torch::nn, so apart) has the modules with input and output hooks.
#pragma once

#include "dtensor/comm_contracts.h"
#include "dtensor/comm_debug_mode.h"
#include "dtensor/comm_trace.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/layout_picture.h"
#include "dtensor/layout_text.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/serialize.h"
#include "dtensor/version.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "placement/placement.h"
#include "propagation/strategy_cache.h"
