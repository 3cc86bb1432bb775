#include "checkpoint/safetensors.h"

#include <ATen/ops/clone.h>

#include <optional>

#include "checkpoint/safetensors_writer.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

void save_safetensors(const NamedTensors& tensors, const std::string& path,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries = safetensors_entries(tensors);
  lay_out_safetensors(entries);
  WholeValues values(tensors);
  const OnWriter on_writer(tensors);
  std::optional<AtomicFile> file;  // in the process that writes
  write_safetensors([&]() -> AtomicFile& { return file.emplace(path); }, entries, metadata, values, on_writer);
  on_writer([&] { file->commit(); });
}

NamedTensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  file.mapped().read_in_order();
  NamedTensors result;
  for (const SafetensorsEntry& e : file.header().entries) {
    const at::Tensor view = file.tensor(e.name);
    LocalGuard guard;
    result.emplace(e.name, view.clone());
  }
  return result;
}

}  // namespace dtensor
