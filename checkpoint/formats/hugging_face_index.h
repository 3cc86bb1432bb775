// The files of Hugging Face's layout, and the index that says which tensor is in which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace dtensor::internal {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// "model-00001-of-00003.safetensors" for i = 0, n = 3; kSingleFile for n = 1.
std::string weights_file(size_t i, size_t n);

// Whether a file of this name belongs to weights of this layout: the index, the single file, or one of any number.
bool is_weights_file(const std::string& name);

struct HuggingFaceIndex {
  std::map<std::string, std::string> weight_map;  // tensor -> file, a name without a folder
  std::optional<int64_t> total_size;              // bytes
};

// Error (c10::Error), with the path: not JSON, not an index, or a file name outside the index's folder.
HuggingFaceIndex read_hugging_face_index(const std::string& path);
// Parses its text; `path` is for errors.
HuggingFaceIndex parse_hugging_face_index(std::string_view text, const std::string& path);

// An untrusted name, for an error: in quotes, escaped, shortened.
std::string shown_name(const std::string& name);

}  // namespace dtensor::internal
