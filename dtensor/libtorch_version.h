// The releases of LibTorch that this source builds with. No other place in the code depends on the release.
#pragma once

#include <torch/headeronly/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 15
#error "dtensor.cpp builds with LibTorch 2.11 to 2.15; this is another release"
#endif
