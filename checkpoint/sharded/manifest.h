// The manifest of a checkpoint, the file checkpoint.json in its folder: its contents and their files.
//
// It is written last and replaced in one step, so that it names complete files only. It contains its own checksum.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/sharded/boxes.h"

namespace dtensor::internal {

inline constexpr char kManifestName[] = "checkpoint.json";

// A part of a tensor, and the file that contains it under the tensor's name.
struct ManifestBox {
  std::string file;
  Box box;
};

struct ManifestTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  Shape shape;
  std::string layout;              // that it was saved from, for people: "S(0)R @ mesh(dp=2, tp=2)"; "" of a plain one
  std::vector<ManifestBox> boxes;  // disjoint; they cover the tensor
};

struct ManifestFile {
  int64_t bytes = 0;
  uint64_t header_sum = 0;  // of the bytes before the data
};

struct Manifest {
  std::string id;  // of the save, in the names of its files
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;
  std::map<std::string, CheckpointValue> settings;  // of the library: options of optimizers, their counts of steps
  std::map<std::string, CheckpointValue> values;    // of the program
};

// As JSON.
std::string to_text(const Manifest& manifest);
// Error (c10::Error): another format or version, a wrong checksum, a field that is missing or of another type, boxes
// that overlap, omit elements or extend beyond their tensor, a name that is a path.
Manifest parse_manifest(const std::string& text);
// Reads the manifest of a folder. Error (c10::Error): there is none, or parse_manifest()'s, with the path.
Manifest read_manifest(const std::string& folder);

}  // namespace dtensor::internal
