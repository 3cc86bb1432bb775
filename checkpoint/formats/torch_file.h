// The two kinds of files that torch writes, as values and tensors. Plain tensors only.
//
// Both are zip files with a pickle and its tensors' bytes. What Python's torch.save writes holds dicts, lists and
// tensors. An archive is what C++ torch::save and torch.jit.save write, and holds objects with attributes, and code:
// that is not even read, so what an archive's classes would do when they are loaded does not happen.
// Errors (c10::Error), with the path: no such file, none of torch's, damaged, too large to be a real one, or with
// objects of classes other than those that torch uses for tensors, parameters and dicts; the text names them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

namespace torch::serialize {
class InputArchive;
}

namespace dtensor::internal {

class Pickle;
class ZipFile;

class TorchFile {
 public:
  explicit TorchFile(const std::string& path);
  ~TorchFile();

  bool is_archive() const;
  // All tensors; those of nested dicts, lists and objects under names joined with '.', a bare tensor as "0". What is no
  // tensor is left out. Error, besides: two tensors of one name.
  std::map<std::string, at::Tensor> tensors() const;
  // The archive from which modules and optimizers load themselves. REQUIRES: is_archive(). Error, in addition: an
  // object that would restore itself by code.
  torch::serialize::InputArchive archive() const;

 private:
  std::unique_ptr<Pickle> read() const;
  std::string path_;
  std::unique_ptr<ZipFile> zip_;
};

}  // namespace dtensor::internal
