// Plain safetensors files: whole tensors by name, which Python's safetensors, transformers and others read and write.
//
//   save_safetensors(state_dict(*model), "model.safetensors");
//   load_state_dict(*other, load_safetensors("model.safetensors"));
//
//   const SafetensorsFile file("model.safetensors");   // reads the header, maps the rest
//   at::Tensor rows = file.tensor("embed.weight").narrow(0, 1000, 24);   // only these come from the disk
//
// The format has no code and no references: loading executes nothing, and tensors that share memory are written each.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/mapped_file.h"
#include "checkpoint/formats/safetensors_header.h"
#include "checkpoint/named_tensors.h"

namespace dtensor {

// A file that is open for reading. Copies are the same file. Any number of threads may read at once.
class SafetensorsFile {
 public:
  // Errors (c10::Error): those of MappedFile and of read_safetensors_header().
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const SafetensorsHeader& header() const { return *header_; }
  bool contains(const std::string& name) const { return by_name_->count(name) != 0; }
  // Error (IndexError): no tensor of this name.
  const SafetensorsEntry& entry(const std::string& name) const;

  // A plain tensor on the CPU, row-major. It is a view of the mapped file, which lives as long as the tensor does: to
  // be read, not written; what is written stays in this process, and all views of this file's tensor see it. Where the
  // file does not align its data to the size of elements it is a copy.
  // Errors: no tensor of this name; a BOOL with bytes that are neither 0 nor 1 (c10::Error).
  at::Tensor tensor(const std::string& name) const;
  // The data as it stands in the file; lives as long as this object or a copy of it.
  std::string_view bytes(const std::string& name) const;
  // All of it, the header as well; lives as long as this object or a copy of it.
  const MappedFile& mapped() const { return *file_; }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const SafetensorsHeader> header_;
  std::shared_ptr<const std::map<std::string_view, const SafetensorsEntry*>> by_name_;
};

// Writes whole values, row-major: views, transposed and conjugated tensors by their values, and tensors that share
// memory separately. Distributed tensors are gathered one at a time (collectives by the name "save"), so that no more
// than one whole tensor is in memory. `path` is replaced when everything is on the disk, and not at all after an error;
// see save() for jobs of several processes. `metadata` are texts for readers of the file; programs that load models of
// PyTorch look for {"format", "pt"}.
// Errors: NotImplementedError where this process lacks values; TypeError for dtypes that the format does not have, with
// the tensor's name; c10::Error where the file cannot be written, names are no UTF-8 or "__metadata__". Undefined
// tensors are left out.
void save_safetensors(const NamedTensors& tensors, const std::string& path,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Every tensor of a file, plain, on the CPU, in memory of its own. Errors: those of SafetensorsFile.
NamedTensors load_safetensors(const std::string& path);

}  // namespace dtensor
