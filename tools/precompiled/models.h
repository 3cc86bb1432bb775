// What models include.
#include <torch/nn.h>
#include <torch/optim.h>
