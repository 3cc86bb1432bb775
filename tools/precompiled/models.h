// Headers included by models.
#include <torch/nn.h>
#include <torch/optim.h>

#include "tools/precompiled/library.h"
#include "tools/precompiled/nn_templates.h"
