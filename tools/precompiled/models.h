// Headers included by models.
#include <torch/nn.h>
#include <torch/optim.h>
