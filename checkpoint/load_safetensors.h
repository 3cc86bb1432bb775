// Safetensors files and folders as values for modules: what load(module, path) copies into parameters.
#pragma once

#include <string>

#include "checkpoint/named_tensors.h"

namespace dtensor::internal {

// The tensors at `path`, a file or folder, as views of the mapped files: copying a part reads that part from the disk.
// Parameters that are tied, one tensor under several names of `targets`, need one of the names in the file, since most
// programs write such a tensor once. Error: those of HuggingFaceFolder.
NamedTensors safetensors_values(const std::string& path, const NamedTensors& targets);

}  // namespace dtensor::internal
