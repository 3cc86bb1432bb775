// An archive for modules and optimizers to load themselves from, made without running what its file says.
#pragma once

#include <torch/serialize/input-archive.h>

#include "checkpoint/formats/pickle_machine.h"

namespace dtensor::internal {

// The root of `pickle` is the object that a TorchScript archive holds. Objects become nested archives, their attributes
// are plain values and tensors. Paths in the archive's error texts begin with "file.". Error (c10::Error): no object,
// one that contains itself, one whose state is no dict, a value of another kind.
torch::serialize::InputArchive input_archive_of(const Pickle& pickle);

}  // namespace dtensor::internal
