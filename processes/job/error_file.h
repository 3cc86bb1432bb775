// The file in which torchrun looks for the reason of a process's end (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <string>

namespace dtensor::internal {

// Replaces what is there. Does nothing if `path` is empty or cannot be written.
void write_error_file(const std::string& path, const std::string& message) noexcept;

}  // namespace dtensor::internal
