#include "checkpoint/one_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "checkpoint/agreement.h"
#include "comm/error_message.h"
#include "dtensor/tensor/representation.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {
namespace {

// All ranks that hold a part, as one dim; undefined if all are in this process. With several meshes the largest:
// tensors without a part in this process cannot be gathered here anyway.
DeviceMesh writers_mesh(const std::vector<at::Tensor>& tensors) {
  DeviceMesh largest;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !is_dtensor(t)) continue;
    const DeviceMesh& mesh = spec_of(t)->mesh();
    if (mesh.world().kind() != World::Kind::kProcesses) continue;
    if (!largest.defined() || mesh.ranks().size() > largest.ranks().size()) largest = mesh;
  }
  if (!largest.defined() || largest.ranks().size() == 1) return {};
  std::vector<int64_t> ranks = largest.ranks();
  std::sort(ranks.begin(), ranks.end());
  const auto n = static_cast<int64_t>(ranks.size());
  return DeviceMesh(largest.world(), {n}, {"save"}, std::move(ranks));
}

}  // namespace

void write_once(const std::vector<at::Tensor>& tensors, const std::string& path, const std::function<void()>& prepare,
                const std::function<void()>& write) {
  const DeviceMesh ranks = writers_mesh(tensors);
  if (!ranks.defined()) {
    if (prepare) prepare();
    write();
    return;
  }
  if (prepare) {
    std::string error;
    try {
      prepare();
    } catch (const std::exception& e) {
      error = message_of(e);
      if (error.find(path) == std::string::npos) error = "[save] '" + path + "': " + error;
    }
    agree_that_all_is_well(ranks, error, "save");
  }
  const bool writes = ranks.local_ranks()[0] == ranks.ranks()[0];
  const std::string wrong = run_on_all(
      ranks, [&] { return writes ? write() : void(); }, "save");
  TORCH_CHECK(wrong.empty(), wrong);
}

}  // namespace dtensor::internal
