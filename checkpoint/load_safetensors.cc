#include "checkpoint/load_safetensors.h"

#include "absl/container/flat_hash_map.h"
#include "checkpoint/hugging_face.h"

namespace dtensor::internal {
namespace {

// Where a tied parameter lacks one of its names, the value of another one.
void complete_tied(NamedTensors& values, const NamedTensors& targets) {
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> known;
  for (const auto& [name, t] : targets) {
    const auto it = values.find(name);
    if (it != values.end()) known.emplace(t.unsafeGetTensorImpl(), it->second);
  }
  for (const auto& [name, t] : targets) {
    const auto it = known.find(t.unsafeGetTensorImpl());
    if (it != known.end()) values.emplace(name, it->second);
  }
}

}  // namespace

NamedTensors safetensors_values(const std::string& path, const NamedTensors& targets) {
  NamedTensors values = HuggingFaceFolder(path).tensors();
  complete_tied(values, targets);
  return values;
}

}  // namespace dtensor::internal
