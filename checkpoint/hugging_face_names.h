// The names of files in Hugging Face's layout. Internal.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// "model-00001-of-00003.safetensors" for i = 0, n = 3; kSingleFile for n = 1.
std::string weights_file(size_t i, size_t n);

// Whether a file of this name belongs to weights of this layout: the index, the single file, or one of any number.
bool is_weights_file(const std::string& name);

}  // namespace dtensor
