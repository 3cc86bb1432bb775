// This library's headers that tests include most.
#pragma once

#include "dtensor/dtensor.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "mesh/device_mesh.h"
#include "observe/comm_debug_mode.h"
#include "placement/placement.h"
#include "tools/precompiled/tests_libtorch.h"
