// Headers included by tests of models.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>

#include "tools/precompiled/nn_templates.h"
#include "tools/precompiled/tests_libtorch.h"
