// One file of a checkpoint: the parts of tensors that one rank wrote, with checksums. A safetensors file, which other
// programs can read, too: PyTorch's distributed checkpoints (HuggingFaceStorageReader) by its DCP_SHARDING_INFO.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/sharded/boxes.h"
#include "checkpoint/sharded/manifest.h"

namespace dtensor::internal {

// A part of a tensor in this process's memory.
struct TensorPart {
  std::string name;
  Box box;
  at::Tensor values;  // of box.sizes; any strides and device
};

// "0123456789abcdef-rank-00003.safetensors"; those after a rank's first, with `index` > 0: "...-rank-00003-1...".
std::string part_file_name(const std::string& id, int64_t rank, int64_t index);
// Whether a file of that name belongs to a checkpoint, possibly an unfinished one of a killed process.
bool is_part_file_name(const std::string& name);

// Writes the file, whole or not at all. `written`: called from time to time with the number of bytes written. Names are
// distinct. Errors: those of AtomicFile and safetensors_header_text().
ManifestFile write_part_file(const std::string& path, const std::vector<TensorPart>& parts,
                             const std::function<void(int64_t bytes)>& written);

// Reads parts of a file. Errors (c10::Error) have the path, and the tensor if it concerns one.
class PartFile {
 public:
  // Error: the file is not the one in the manifest.
  PartFile(const std::string& path, const ManifestFile& expected);

  // The part of the tensor that the file has, of `box.sizes`: a view of the file, valid as long as this object;
  // read-only. Error: it has none, or one of another shape or dtype.
  at::Tensor part(const std::string& name, const Box& box, c10::ScalarType dtype) const;
  // Announces that a block of the part (offsets and sizes in it) will be read.
  void want(const std::string& name, const Shape& offsets, const Shape& sizes);

 private:
  friend class WantedChunks;

  SafetensorsFile file_;
  std::vector<uint64_t> sums_;  // per chunk, as is
  std::vector<bool> wanted_;
};

// The chunks, with a checksum each, that hold the announced blocks of some files, in the order of the files and of
// their data.
class WantedChunks {
 public:
  explicit WantedChunks(const std::vector<const PartFile*>& files);

  int64_t bytes() const { return bytes_; }
  // Verifies them in order, so that the disk reads sequentially; the checksums take a fraction of that time.
  // `verified`: called from time to time with the number of bytes verified. Error: one is damaged; the text names the
  // file and the tensors.
  void verify(const std::function<void(int64_t bytes)>& verified) const;

 private:
  struct Chunk {
    const PartFile* file;
    int64_t index, begin, bytes;  // begin: from the beginning of the file
  };
  static void check(const Chunk& chunk);
  static std::string tensors_in(const Chunk& chunk);

  std::vector<Chunk> chunks_;
  int64_t bytes_ = 0;
};

}  // namespace dtensor::internal
