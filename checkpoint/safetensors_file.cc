#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

// Reading another value of a bool is undefined behaviour in C++.
void check_bools(const SafetensorsFile& file, const std::string& name) {
  const std::string_view bytes = file.bytes(name);
  const auto it = std::find_if(bytes.begin(), bytes.end(), [](unsigned char b) { return b > 1; });
  TORCH_CHECK(it == bytes.end(), "[load] '", file.path(), "': tensor '", name, "' is BOOL, but element ",
              it - bytes.begin(), " is ", static_cast<int>(static_cast<unsigned char>(*it)), ", neither 0 nor 1");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(std::make_shared<const MappedFile>(path)) {
  header_ = std::make_shared<const SafetensorsHeader>(read_safetensors_header(*file_));
  std::map<std::string_view, const SafetensorsEntry*> by_name;
  for (const SafetensorsEntry& e : header_->entries) by_name.emplace(e.name, &e);
  by_name_ = std::make_shared<const std::map<std::string_view, const SafetensorsEntry*>>(std::move(by_name));
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto it = by_name_->find(name);
  TORCH_CHECK_INDEX(it != by_name_->end(), "[load] '", path(), "' has no tensor '", name, "', but ", by_name_->size(),
                    " others",
                    by_name_->empty() ? "" : absl::StrCat(", such as '", header_->entries.front().name, "'"));
  return *it->second;
}

std::string_view SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  return {file_->data() + header_->data_begin + e.begin, static_cast<size_t>(e.bytes())};
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  if (e.dtype == at::kBool) check_bools(*this, name);
  const at::TensorOptions options = at::TensorOptions(e.dtype).device(at::kCPU);
  LocalGuard guard;  // plain also inside a MeshScope
  if (e.bytes() == 0) return at::empty(e.shape, options);
  char* data = file_->data() + header_->data_begin + e.begin;
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(e.dtype) == 0) {
    return at::from_blob(
        data, e.shape, [file = file_](void*) {}, options);
  }
  const at::Tensor copy = at::empty(e.shape, options);
  std::memcpy(copy.data_ptr(), data, static_cast<size_t>(e.bytes()));
  return copy;
}

}  // namespace dtensor
