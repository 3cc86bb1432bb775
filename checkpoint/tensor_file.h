// The two file formats of torch, as named tensors. Internal; plain tensors only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace dtensor {

enum class FileFormat { kArchive, kPickle };  // what C++ torch::save writes; what Python's torch.save writes

// Error (c10::Error): no such file, or not one of torch's; the text has the path.
FileFormat file_format(const std::string& path);

// What writes an archive of LibTorch: it calls `sink` with bytes, which gives back how many it took.
using ArchiveWriter = std::function<void(const std::function<size_t(const void* bytes, size_t n)>& sink)>;
// Makes the file of what `write` gives, whole or not at all (atomic_file.h).
void write_archive(const std::string& path, const ArchiveWriter& write);

// Pickle format: a dict that Python's torch.load reads with weights_only, as it does by default.
void write_pickle(const std::map<std::string, at::Tensor>& tensors, const std::string& path);

// All tensors of either format, on the CPU; those of nested dicts and submodules under names joined with '.', a bare
// tensor as "0". Runs no code from the file: of Python's globals only those that rebuild tensors, parameters and dicts
// are known. What is no tensor is left out.
// Error (c10::Error): the file is damaged, or holds objects of other classes; the text names them.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

}  // namespace dtensor
