// What tests of models include.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>

#include "tools/precompiled/tests.h"
