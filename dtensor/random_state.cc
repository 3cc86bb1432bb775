// The generators that random numbers come from, in a job of several processes: share_random_state() of factories.h.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

void share_state(const DeviceMesh& mesh, c10::Device of) {
  at::Generator generator = at::globalContext().defaultGenerator(of);
  const LocalGuard guard;
  at::Tensor state;
  {
    std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  const at::Tensor shared = distribute_tensor(state, mesh);
  if (mesh.local_ranks().empty()) return;
  state = meta_for_read(shared).locals.front().cpu();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void share_random_state(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined(), "[share_random_state] no mesh: give a DeviceMesh(world, shape)");
  const World& world = mesh.world();
  if (!world.has_data()) return;
  share_state(mesh, c10::DeviceType::CPU);
  if (world.device_type() == c10::DeviceType::CPU) return;
  const auto& ranks = mesh.local_ranks();
  share_state(mesh, ranks.empty() ? c10::Device(world.device_type(), 0) : world.device(ranks.front()));
}

}  // namespace dtensor
