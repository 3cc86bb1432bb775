// What a checkpoint holds and where: the file checkpoint.json of its folder. Internal.
//
// It is written last and replaced in one step, so that it names complete files only. Its text has a checksum of its
// own.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/sharded/boxes.h"

namespace dtensor {

inline constexpr char kManifestName[] = "checkpoint.json";

// A part of a tensor, and the file that has it under the tensor's name.
struct ManifestBox {
  std::string file;
  Box box;
};

struct ManifestTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  Shape shape;
  std::string layout;              // that it was saved from, for people: "S(0)R @ mesh(dp=2, tp=2)"; "" of a plain one
  std::vector<ManifestBox> boxes;  // disjoint; together all of it
};

struct ManifestFile {
  int64_t bytes = 0;
  uint64_t header_sum = 0;  // of what stands before the data
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
// that overlap, leave something out or reach beyond their tensor, a name that is a path.
Manifest parse_manifest(const std::string& text);
// That of a folder. Error (c10::Error): none there, or parse_manifest()'s, with the path.
Manifest read_manifest(const std::string& folder);

}  // namespace dtensor
