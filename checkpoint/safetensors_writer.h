// Writes the tensors of a program to safetensors files. Used by save_safetensors() and save_hugging_face().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/safetensors_header.h"
#include "checkpoint/named_tensors.h"

namespace dtensor::internal {

// Names, dtypes and global shapes of all defined tensors, each as if it were the only one.
// Error (TypeError), with the name: a dtype that the format does not have, sparse and meta tensors.
std::vector<SafetensorsEntry> safetensors_entries(const NamedTensors& tensors);

// Whole values, gathered on request; the value of a tied tensor is kept until its last name was requested.
class WholeValues {
 public:
  explicit WholeValues(const NamedTensors& tensors);  // outlives this object
  // Each name once. A collective call where the tensor is distributed. Errors: those of whole_value().
  at::Tensor take(const std::string& name);

 private:
  struct Shared {
    int64_t names = 0;  // that were not requested yet
    at::Tensor value;
  };
  const NamedTensors& tensors_;
  std::unordered_map<const c10::TensorImpl*, Shared> shared_;
};

// Runs file operations in the process that writes, as write_once() does; a collective call.
class OnWriter {
 public:
  explicit OnWriter(const NamedTensors& tensors);
  void operator()(const std::function<void()>& work) const;

 private:
  std::vector<at::Tensor> tensors_;
};

// Writes header and data of `entries`, which lie in this order, to the file that `open` gives the process that writes,
// as far as commit(). A collective call. Errors, on all ranks: of the values, and of the file.
void write_safetensors(const std::function<AtomicFile&()>& open, const std::vector<SafetensorsEntry>& entries,
                       const std::map<std::string, std::string>& metadata, WholeValues& values,
                       const OnWriter& on_writer);

}  // namespace dtensor::internal
