// The same for tests of models.
#pragma once

#include "tools/precompiled/nn_libtorch.h"
#include "tools/precompiled/tests.h"
