// Hugging Face's layout of a model's weights: a folder with one safetensors file, or with several and an index.
//
//   model.safetensors                     all tensors; or
//   model-00001-of-00003.safetensors ...  some of them each, and
//   model.safetensors.index.json          {"metadata": {"total_size": bytes}, "weight_map": {"embed.weight": file, ...}}
//
//   save_hugging_face(state_dict(*model), "folder");    // transformers: AutoModel.from_pretrained("folder")
//   load(*other, "folder");                             // each rank reads its parts
//   const HuggingFaceFolder weights("folder");
//   at::Tensor rows = weights.tensor("embed.weight").narrow(0, 1000, 24);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace dtensor {

// The weights of a folder, open for reading. Copies are the same files. Any number of threads may read at once.
class HuggingFaceFolder {
 public:
  // `path`: a folder, an index, or a single safetensors file. Opens and checks all files; data is read when it is
  // looked at. Files of the folder that the index does not name are not looked at.
  // Errors (c10::Error), naming the files: there are no weights, or both kinds of them; one of SafetensorsFile; the
  // index is no JSON, leads out of the folder, or differs from the files: a tensor that is not where it says, one that
  // it does not name or has elsewhere, other bytes in all than its total_size.
  explicit HuggingFaceFolder(const std::string& path);

  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::vector<std::string> names() const;  // of the tensors, sorted
  bool contains(const std::string& name) const { return file_of_.count(name) != 0; }
  // The file that holds a tensor. Error (IndexError): no tensor of this name.
  const SafetensorsFile& file_of(const std::string& name) const;
  // As SafetensorsFile::tensor().
  at::Tensor tensor(const std::string& name) const { return file_of(name).tensor(name); }
  // All of them, as views of the mapped files.
  NamedTensors tensors() const;

 private:
  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;  // names -> files_
};

// Whether `path` is a safetensors file, an index of such files, or a folder in Hugging Face's layout, by what it holds
// and not by its name. False for what cannot be read.
bool holds_safetensors(const std::string& path);

// Writes whole values as save_safetensors() does, in the order of names, no more than `max_file_bytes` bytes of data
// into a file, though at least one tensor. A single file is model.safetensors, without an index. The folder is made if
// there is none; weights of this layout in it are replaced, other files stay. All files are on the disk before the
// older weights are touched, so that errors of gathering or of a full disk leave those as they were. Replacing is not
// one step: a process that is killed while it renames leaves a folder without index and model.safetensors, which
// loading refuses, never a mixture that loads. Errors: those of save_safetensors(); ValueError if max_file_bytes < 1.
void save_hugging_face(const NamedTensors& tensors, const std::string& folder, int64_t max_file_bytes = 5'000'000'000,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace dtensor
