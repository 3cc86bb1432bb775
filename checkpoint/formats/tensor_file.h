// Writes torch's files. Plain tensors only. Their reader is torch_file.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace dtensor::internal {

// Writes an archive of LibTorch: it calls `sink` with bytes, which returns how many it accepted.
using ArchiveWriter = std::function<void(const std::function<size_t(const void* bytes, size_t n)>& sink)>;
// Makes the file of what `write` gives, whole or not at all (atomic_file.h).
void write_archive(const std::string& path, const ArchiveWriter& write);

// A dict that Python's torch.load reads with weights_only, as it does by default. REQUIRES: can_be_stored(), contiguous
// tensors on the CPU; those that share their memory share it in the file.
void write_pickle(const std::map<std::string, at::Tensor>& tensors, const std::string& path);

}  // namespace dtensor::internal
