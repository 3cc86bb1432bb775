#include "checkpoint/tensor_file.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <exception>
#include <fstream>

#include "checkpoint/atomic_file.h"
#include "checkpoint/pickle_reader.h"

namespace dtensor {
namespace {

caffe2::serialize::PyTorchStreamReader open_zip(const std::string& path) try {
  TORCH_CHECK(std::ifstream(path).good(), "no such file, or it cannot be read");
  return caffe2::serialize::PyTorchStreamReader(path);
} catch (const c10::Error& e) {
  TORCH_CHECK(false, "[load] '", path, "': ", e.what_without_backtrace());
}

}  // namespace

FileFormat file_format(const std::string& path) {
  return open_zip(path).hasRecord("constants.pkl") ? FileFormat::kArchive : FileFormat::kPickle;
}

void write_archive(const std::string& path, const ArchiveWriter& write) {
  AtomicFile file(path);
  // LibTorch's writers finish the archive in their destructors, where an error of the sink would end the process. So
  // they never see one.
  std::exception_ptr error;
  write([&](const void* bytes, size_t n) {
    try {
      if (!error) file.write(bytes, n);
    } catch (...) {
      error = std::current_exception();
    }
    return n;
  });
  if (error) std::rethrow_exception(error);
  file.commit();
}

void write_pickle(const std::map<std::string, at::Tensor>& tensors, const std::string& path) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  std::string data;
  // Without tags of the container's type, which Python's weights_only loader would refuse.
  torch::jit::Pickler pickler([&](const char* bytes, size_t n) { data.append(bytes, n); }, nullptr, nullptr, nullptr,
                              nullptr,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(dict);
  pickler.stop();
  write_archive(path, [&](const auto& sink) {
    caffe2::serialize::PyTorchStreamWriter writer(sink);
    writer.writeRecord("data.pkl", data.data(), data.size());
    size_t i = 0;
    for (const at::Tensor& t : pickler.tensorData()) {
      const auto bytes = torch::jit::getWriteableTensorData(t);
      writer.writeRecord("data/" + std::to_string(i++), bytes.data(), bytes.sizeInBytes());
    }
    writer.writeEndOfFile();
  });
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  std::map<std::string, at::Tensor> result;
  if (file_format(path) == FileFormat::kArchive) {
    const auto module = torch::jit::load(path, at::kCPU);
    for (const auto& attribute : module.named_attributes()) {
      if (attribute.value.isTensor()) result.emplace(attribute.name, attribute.value.toTensor());
    }
    return result;
  }
  auto zip = open_zip(path);
  try {
    return read_pickled_tensors(zip);
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, "[load] '", path, "': ", e.what_without_backtrace());
  }
}

}  // namespace dtensor
