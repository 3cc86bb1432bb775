#include "python/mesh_handles.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace dtensor::internal {
namespace {

struct Table {
  std::mutex mutex;
  std::vector<DeviceMesh> meshes;  // handle - 1 -> mesh; guarded by mutex
};

// Leaked: Python may drop its last tensors after static destructors have run.
Table& table() {
  static Table& table = *new Table;
  return table;
}

}  // namespace

int64_t add_mesh(DeviceMesh mesh) {
  std::lock_guard<std::mutex> lock(table().mutex);
  table().meshes.push_back(std::move(mesh));
  return static_cast<int64_t>(table().meshes.size());
}

int64_t num_meshes() {
  std::lock_guard<std::mutex> lock(table().mutex);
  return static_cast<int64_t>(table().meshes.size());
}

int64_t handle_of(const DeviceMesh& mesh) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto& meshes = table().meshes;
  const auto at = std::find(meshes.begin(), meshes.end(), mesh);
  if (at != meshes.end()) return at - meshes.begin() + 1;
  meshes.push_back(mesh);
  return static_cast<int64_t>(meshes.size());
}

DeviceMesh mesh_of(int64_t handle, std::string_view caller) {
  std::lock_guard<std::mutex> lock(table().mutex);
  const auto& meshes = table().meshes;
  TORCH_CHECK_VALUE(handle >= 1 && handle <= static_cast<int64_t>(meshes.size()), "[", caller, "] mesh ", handle,
                    " does not exist: ",
                    meshes.empty() ? std::string("make one with init_local_mesh(shape, dim_names)")
                                   : c10::str("init_local_mesh() has returned 1..", meshes.size(), " so far"));
  return meshes[handle - 1];
}

}  // namespace dtensor::internal
