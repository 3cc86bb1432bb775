// Torch's files as a whole, as tensors and as archives. A tensor lies in its storage; what is written again is equal.
#include <ATen/core/Tensor.h>
#include <torch/serialize/input-archive.h>

#include <map>
#include <sstream>

#include "checkpoint/formats/stored_dtypes.h"
#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/formats/torch_file.h"
#include "checkpoint/formats/zip_file.h"
#include "tests/checkpoint/torch_zip.h"
#include "tests/readers/reader_fuzz.h"
#include "tests/readers/zip_input.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

namespace {

constexpr int64_t kMostElements = 4096;  // of a tensor that is copied: one element may stand for any number of them

// On a disk in memory where there is one: files are flushed.
const std::string& scratch_path() {
  static const std::string path = (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") +
                                  std::string("/dtensor-torch-file-fuzz-") + std::to_string(getpid());
  return path;
}

void check_tensor(const at::Tensor& t) {
  const auto item = static_cast<int64_t>(t.element_size());
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) {
    must(t.size(d) >= 0 && t.stride(d) >= 0, "sizes and strides are not negative");
    if (t.size(d) > 0) last += (t.size(d) - 1) * t.stride(d);
  }
  must(t.numel() == 0 || (last + 1) * item <= static_cast<int64_t>(t.storage().nbytes()),
       "a tensor lies in its storage");
  touch(t.storage().data(), t.storage().nbytes());
}

void check_round_trip(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> copies;
  int64_t elements = 0;
  for (const auto& [name, t] : tensors) {
    if (t.numel() > kMostElements || (elements += t.numel()) > kMostElements || !can_be_stored(t.scalar_type())) return;
    copies[name] = t.contiguous();
  }
  write_pickle(copies, scratch_path());
  const auto again = TorchFile(scratch_path()).tensors();
  unlink(scratch_path().c_str());
  must(again.size() == copies.size(), "as many tensors are read as were written");
  for (const auto& [name, t] : copies) {
    const auto at = again.find(name);
    must(at != again.end() && at->second.sizes() == t.sizes() && at->second.scalar_type() == t.scalar_type() &&
             (t.numel() == 0 || std::memcmp(at->second.const_data_ptr(), t.const_data_ptr(), t.nbytes()) == 0),
         "a tensor that is written reads as what it was");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  memory.set(data, size);
  const auto file = read_or_refuse([&] { return std::make_unique<TorchFile>(memory.path()); });
  if (!file) return 0;
  if (const auto tensors = read_or_refuse([&] { return (*file)->tensors(); })) {
    for (const auto& [name, t] : *tensors) check_tensor(t);
    check_round_trip(*tensors);
  }
  if (!(*file)->is_archive()) return 0;
  read_or_refuse([&] {
    torch::serialize::InputArchive archive = (*file)->archive();
    for (const std::string& key : archive.keys()) {
      c10::IValue value;
      if (archive.try_read(key, value) && value.isTensor() && value.toTensor().defined())
        check_tensor(value.toTensor());
    }
    return true;
  });
  return 0;
}

// Half of the changes are of one record, in a file that is whole again: the pickle's bytes lie between others whose
// lengths and places must fit.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  static MemoryFile memory;
  memory.set(data, size);
  const auto records = read_or_refuse([&] {
    const ZipFile zip(memory.path());
    std::vector<ZipRecord> all;
    for (const std::string& name : zip_names(text_of_input(data, size))) {
      if (name.empty() || name == "version" || name[0] == '.' || !zip.has(name)) continue;
      all.push_back({name, zip.read_text(name, max_size)});
    }
    return all;
  });
  if (seed % 2 == 0 || !records || records->empty()) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<ZipRecord> changed = *records;
  size_t which = seed / 2 % changed.size();
  for (size_t i = 0; i < changed.size(); ++i) {
    if (changed[i].name == "data.pkl" && seed % 8 != 1) which = i;  // most often this one
  }
  changed[which].bytes = mutated(changed[which].bytes, max_size / 4);
  const auto file = read_or_refuse([&] { return torch_zip(changed); });
  return file && file->size() <= max_size ? put_input(*file, data, max_size) : LLVMFuzzerMutate(data, size, max_size);
}
