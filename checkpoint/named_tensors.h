// The contents of files: tensors by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace dtensor {

using NamedTensors = std::map<std::string, at::Tensor>;

}  // namespace dtensor
