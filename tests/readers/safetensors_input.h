// Safetensors files, changed so that what changes is not always the length alone.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/readers/reader_fuzz.h"

namespace dtensor::testing {

// The text between the length and the data; "" without one.
inline std::string safetensors_json(const std::string& file) {
  uint64_t n = 0;
  if (file.size() < sizeof n) return "";
  std::memcpy(&n, file.data(), sizeof n);
  return n <= file.size() - sizeof n ? file.substr(sizeof n, n) : "";
}

// A file of this header, with its length and as much data as it speaks of, but for what is beyond `max_size`: a change
// of the text alone would be refused for another length, and for data that is left over.
inline std::string safetensors_of(const std::string& json, std::string data, size_t max_size) {
  const uint64_t n = json.size();
  std::string file(reinterpret_cast<const char*>(&n), sizeof n);
  file += json;
  size_t end = 0;
  const auto header = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (header.is_object()) {
    for (const auto& [name, tensor] : header.items()) {
      if (!tensor.is_object() || !tensor.contains("data_offsets")) continue;
      const auto& offsets = tensor["data_offsets"];
      if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned()) {
        end = std::max(end, offsets[1].get<size_t>());
      }
    }
  }
  if (end <= max_size) data.resize(end, '\1');
  return file + data;
}

inline std::string mutated_safetensors(const std::string& file, size_t max_size, unsigned int seed) {
  const std::string json = safetensors_json(file);
  if (json.empty() || seed % 4 == 0 || max_size < 64) return mutated(file, max_size);
  return safetensors_of(mutated(json, max_size / 2), file.substr(8 + json.size()), max_size / 2);
}

}  // namespace dtensor::testing
