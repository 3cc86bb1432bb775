// Safetensors files by hand, for tests of what reads them.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace dtensor::testing {

inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// `length` bytes are said to follow; those of `header` if it is negative.
inline std::string safetensors_bytes(const std::string& header, const std::string& data, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  return bytes + header + data;
}

}  // namespace dtensor::testing
