// The files of a save: which part of which tensor goes into which.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/sharded/manifest.h"
#include "checkpoint/sharded/part_file.h"

namespace dtensor::internal {

// A file that a rank of this process writes.
struct PlannedFile {
  std::string name;
  std::vector<TensorPart> parts;

  int64_t bytes() const;  // of its data
};

// Names of files without the save's id, which is their prefix.
struct PlannedSave {
  std::map<std::string, ManifestTensor> tensors;  // of all processes, the same on each
  std::vector<PlannedFile> files;                 // of this process
};

// Errors (c10::Error): a Partial tensor; a dtype that the files do not know.
PlannedSave plan_files(const NamedTensors& tensors, const World& world);

}  // namespace dtensor::internal
