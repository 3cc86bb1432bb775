// The header of a safetensors file: the names, dtypes, shapes and offsets of its tensors.
//
//   bytes              what
//   8                  the header's length n, little endian
//   n                  JSON: {"__metadata__": {"format": "pt"}, "weight": {"dtype": "F32", "shape": [2, 3],
//                      "data_offsets": [0, 24]}, ...}, which spaces may follow
//   the file's rest    data: row-major, little endian, without holes
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/mapped_file.h"

namespace dtensor {

struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape = {};
  int64_t begin = 0, end = 0;  // bytes, from the beginning of the data

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // bytes, from the file's beginning
};

// Everything that the file says of itself is checked, before memory is taken for it: a header that comes back is whole,
// and the data of every entry lies in the file. Memory and time grow with the header, of at most 100 MB.
// Errors (c10::Error), with the path and the name of the tensor: no safetensors file, or one that is damaged or cut
// off; holes, overlaps, names twice, unknown fields; a dtype that LibTorch does not have (F4, F6_E2M3, F6_E3M2), more
// than 64 dims, sizes beyond 2^63.
SafetensorsHeader read_safetensors_header(const MappedFile& file);
// Parses a file's bytes; `path` is for errors.
SafetensorsHeader read_safetensors_header(std::string_view file, const std::string& path);

namespace internal {

// The bytes before the data: the header's length and the header, filled up with spaces to a multiple of 8 bytes. The
// data follows in the order of `entries`, whose begin and end are not read: offsets come from dtypes and shapes.
// Errors (c10::Error): names twice, not in UTF-8, or "__metadata__"; what read_safetensors_header() would refuse.
std::string safetensors_header_text(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata = {});

// Sorts by size of elements, large ones first, then by name, as other writers do, so that all data is aligned; sets
// begin and end. Error (c10::Error): sizes that do not fit.
void lay_out_safetensors(std::vector<SafetensorsEntry>& entries);

}  // namespace internal

}  // namespace dtensor
