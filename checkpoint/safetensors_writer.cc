#include "checkpoint/safetensors_writer.h"

#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "checkpoint/formats/safetensors_dtypes.h"
#include "checkpoint/one_writer.h"
#include "checkpoint/serialize_parts.h"

namespace dtensor::internal {

std::vector<SafetensorsEntry> safetensors_entries(const NamedTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, t] : tensors) {
    if (!t.defined()) continue;
    TORCH_CHECK_TYPE(
        t.layout() == at::kStrided && !t.is_meta(), "[save] '", name, "' is ",
        t.is_meta() ? "a meta tensor, which has no values" : "sparse, which safetensors files do not have");
    try {
      safetensors_dtype_name(t.scalar_type());
    } catch (const c10::TypeError& e) {
      TORCH_CHECK_TYPE(false, "[save] '", name, "': ", e.what_without_backtrace());
    }
    const std::optional<int64_t> bytes = data_bytes(t.scalar_type(), t.sizes().vec());
    TORCH_CHECK_VALUE(bytes, "[save] '", name, "' of shape ", t.sizes(), " has more than 2^63 bytes");
    entries.push_back({name, t.scalar_type(), t.sizes().vec(), 0, *bytes});
  }
  return entries;
}

WholeValues::WholeValues(const NamedTensors& tensors) : tensors_(tensors) {
  for (const auto& [name, t] : tensors) {
    if (t.defined()) ++shared_[t.unsafeGetTensorImpl()].names;
  }
}

at::Tensor WholeValues::take(const std::string& name) {
  const at::Tensor& t = tensors_.at(name);
  Shared& shared = shared_.at(t.unsafeGetTensorImpl());
  at::Tensor value = shared.value.defined() ? shared.value : whole_value(t);
  shared.value = --shared.names > 0 ? value : at::Tensor();
  return value;
}

OnWriter::OnWriter(const NamedTensors& tensors) {
  for (const auto& [name, t] : tensors) {
    if (t.defined()) tensors_.push_back(t);
  }
}

void OnWriter::operator()(const std::function<void()>& work) const { write_once(tensors_, /*path=*/"", nullptr, work); }

void write_safetensors(const std::function<AtomicFile&()>& open, const std::vector<SafetensorsEntry>& entries,
                       const std::map<std::string, std::string>& metadata, WholeValues& values,
                       const OnWriter& on_writer) {
  const std::string header = safetensors_header_text(entries, metadata);
  AtomicFile* file = nullptr;
  on_writer([&] {
    file = &open();
    file->write(header.data(), header.size());
  });
  for (const SafetensorsEntry& e : entries) {
    const at::Tensor value = values.take(e.name);
    on_writer([&] { file->write(value.const_data_ptr(), value.nbytes()); });
  }
}

}  // namespace dtensor::internal
