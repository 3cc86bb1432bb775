// The library as PyTorch operators, so that Python needs nothing but the shared object:
//
//   torch.ops.load_library("libdtensor.so")
//   mesh = torch.ops.dtensor.init_local_mesh([2, 2], ["dp", "tp"])
//   p.data = torch.ops.dtensor.distribute(p.data, mesh, "RS(0)")     # an nn.Parameter, in place
//
// Without a key of their own (CompositeImplicitAutograd): the C++ functions record autograd themselves.
#include <torch/library.h>

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/from_local.h"
#include "dtensor/ghost_width.h"
#include "dtensor/meta_device.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"
#include "placement/parse_placements.h"
#include "python/mesh_handles.h"

namespace dtensor::internal {
namespace {

Placements parse(std::string_view text, std::string_view caller) {
  auto placements = parse_placements(text);
  TORCH_CHECK_VALUE(placements.ok(), "[", caller, "] ", placements.status().message());
  return *std::move(placements);
}

int64_t init_local_mesh(at::IntArrayRef shape, std::vector<std::string> dim_names, std::optional<at::Device> device) {
  // A nonsensical shape gets a world of one rank, so that it is DeviceMesh that says what is wrong with it.
  int64_t ranks = 1;
  for (int64_t size : shape) {
    if (size < 1 || __builtin_mul_overflow(ranks, size, &ranks)) {
      ranks = 1;
      break;
    }
  }
  const World world = World::local(ranks, device.value_or(at::Device(at::kCPU)));
  return add_mesh(DeviceMesh(world, shape.vec(), std::move(dim_names)));
}

// The world that a launcher started this process in; the same one for all meshes.
int64_t init_process_mesh(at::IntArrayRef shape, std::vector<std::string> dim_names) {
  static const World& world = *new World(World::from_env());
  return add_mesh(DeviceMesh(world, shape.vec(), std::move(dim_names)));
}

int64_t meta_mesh(int64_t mesh) { return handle_of(mesh_of(mesh, "meta_mesh").meta()); }

int64_t mesh_of_op(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_dtensor(tensor), "[mesh_of] the tensor is not distributed");
  return handle_of(spec_of(tensor)->mesh());
}

std::vector<int64_t> mesh_shape(int64_t mesh) { return mesh_of(mesh, "mesh_shape").shape(); }
std::vector<std::string> mesh_dim_names(int64_t mesh) { return mesh_of(mesh, "mesh_dim_names").names(); }

// The scopes that Python is in on a thread, the innermost last. Guards end in the opposite order.
struct OpenScope {
  std::string kind;
  std::shared_ptr<void> guard;
};
std::vector<OpenScope>& open_scopes() {
  static thread_local std::vector<OpenScope> scopes;
  return scopes;
}

void enter_mesh_scope(int64_t mesh) {
  open_scopes().push_back({"mesh_scope", std::make_shared<MeshScope>(mesh_of(mesh, "mesh_scope"))});
}
void enter_implicit_replication() {
  open_scopes().push_back({"implicit_replication", std::make_shared<ImplicitReplication>()});
}
void enter_replicate_unsupported() {
  open_scopes().push_back({"replicate_unsupported", std::make_shared<ReplicateUnsupported>()});
}
void enter_delay_gradient_reduction() {
  open_scopes().push_back({"delay_gradient_reduction", std::make_shared<DelayGradientReduction>()});
}
void leave_scope(const std::string& kind) {
  auto& scopes = open_scopes();
  TORCH_CHECK_VALUE(!scopes.empty() && scopes.back().kind == kind,
                    "[leave_scope] the innermost scope of this thread is ",
                    scopes.empty() ? "none" : scopes.back().kind, ", not ", kind,
                    ": scopes end where they began, in the opposite order");
  scopes.pop_back();
}

void reduce_gradients_op(at::TensorList parameters) { reduce_gradients(parameters.vec()); }

at::Tensor to_empty_op(const at::Tensor& tensor) { return to_empty(tensor); }

at::Tensor distribute(const at::Tensor& tensor, int64_t mesh, std::string_view placements) {
  return distribute_tensor(tensor, mesh_of(mesh, "distribute"), parse(placements, "distribute"));
}

at::Tensor full_tensor_op(const at::Tensor& tensor) { return full_tensor(tensor); }

at::Tensor redistribute_op(const at::Tensor& tensor, std::string_view placements, std::optional<int64_t> max_bytes) {
  RedistributeOptions options;
  if (max_bytes) options.max_bytes = *max_bytes;
  return redistribute(tensor, parse(placements, "redistribute"), options);
}

void relayout_op(const at::Tensor& tensor, std::string_view placements) {
  relayout_(tensor, parse(placements, "relayout_"));
}

std::string placements_op(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_dtensor(tensor), "[placements] the tensor is not distributed");
  return to_string(spec_of(tensor)->placements());
}

bool is_dtensor_op(const at::Tensor& tensor) { return is_dtensor(tensor); }

std::vector<at::Tensor> local_tensors(const at::Tensor& tensor) { return to_local(tensor); }

std::vector<at::Tensor> mutable_local_tensors_op(const at::Tensor& tensor) { return mutable_local_tensors(tensor); }

void fetch_parts_op(const at::Tensor& tensor) { fetch_parts(tensor); }

at::Tensor from_local_op(at::TensorList locals, int64_t mesh, std::string_view placements, at::IntArrayRef shape) {
  FromLocalOptions options;
  // [] with locals that have dims cannot be the global shape: it means to compute it.
  if (!shape.empty() || locals.empty() || locals[0].dim() == 0) options.shape = shape.vec();
  return from_local(locals.vec(), mesh_of(mesh, "from_local"), parse(placements, "from_local"), options);
}

// The counts at the user's last reset.
struct Baseline {
  std::mutex mutex;
  CollectiveCounts counts{};  // guarded by mutex
};

Baseline& baseline() {
  static Baseline& baseline = *new Baseline;
  return baseline;
}

std::string comm_counts() {
  std::lock_guard<std::mutex> lock(baseline().mutex);
  const CollectiveCounts now = collectives_issued();
  std::string json = "{";
  for (int c = 0; c < kNumCollectives; ++c) {
    json +=
        c10::str(c == 0 ? "" : ", ", '"', to_string(static_cast<Collective>(c)), "\": ", now[c] - baseline().counts[c]);
  }
  return json + "}";
}

void comm_counts_reset() {
  std::lock_guard<std::mutex> lock(baseline().mutex);
  baseline().counts = collectives_issued();
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY(dtensor, m) {
  using namespace dtensor;
  using namespace dtensor::internal;
  // A mesh over as many new ranks, all in this process, on one device (the CPU by default). Tensors on meshes of two
  // calls do not mix.
  m.def("init_local_mesh(int[] shape, str[] dim_names, *, Device? device=None) -> int", &init_local_mesh);
  // A mesh of the processes that a launcher started (torchrun, mpirun, Slurm): one rank each.
  m.def("init_process_mesh(int[] shape, str[] dim_names) -> int", &init_process_mesh);
  // The same mesh for tensors without data (dtensor/meta_device.h).
  m.def("meta_mesh(int mesh) -> int", &meta_mesh);
  m.def("num_meshes() -> int", &num_meshes);  // their handles are 1 to that
  m.def("mesh_of(Tensor tensor) -> int", &mesh_of_op);
  m.def("mesh_shape(int mesh) -> int[]", &mesh_shape);
  m.def("mesh_dim_names(int mesh) -> str[]", &mesh_dim_names);
  // For this thread; dtensor_torch.py has them as context managers.
  m.def("enter_mesh_scope(int mesh) -> ()", &enter_mesh_scope);
  m.def("enter_implicit_replication() -> ()", &enter_implicit_replication);
  m.def("enter_replicate_unsupported() -> ()", &enter_replicate_unsupported);
  m.def("enter_delay_gradient_reduction() -> ()", &enter_delay_gradient_reduction);
  m.def("leave_scope(str kind) -> ()", &leave_scope);
  m.def("reduce_gradients(Tensor[] parameters) -> ()", &reduce_gradients_op);
  m.def("to_empty(Tensor tensor) -> Tensor", &to_empty_op);
  m.def("distribute(Tensor tensor, int mesh, str placements) -> Tensor", &dtensor::internal::distribute);
  m.def("full_tensor(Tensor tensor) -> Tensor", &full_tensor_op);
  m.def("redistribute(Tensor tensor, str placements, *, int? max_bytes=None) -> Tensor", &redistribute_op);
  m.def("relayout_(Tensor(a!) tensor, str placements) -> ()", &relayout_op);
  m.def("placements(Tensor tensor) -> str", &placements_op);
  m.def("is_dtensor(Tensor tensor) -> bool", &is_dtensor_op);
  m.def("local_tensors(Tensor tensor) -> Tensor[]", &local_tensors);
  // To write to; all ranks call it alike.
  m.def("mutable_local_tensors(Tensor tensor) -> Tensor[]", &mutable_local_tensors_op);
  m.def("fetch_parts(Tensor tensor) -> ()", &fetch_parts_op);  // collective
  // dtensor/ghost_width.h; all ranks call it alike.
  m.def("set_ghost_width(Tensor tensor, int[] width) -> ()", &set_ghost_width);
  m.def("from_local(Tensor[] locals, int mesh, str placements, int[] shape) -> Tensor", &from_local_op);
  // {"all_reduce": 2, ...}: the collectives of all threads since the library was loaded or the counts were reset.
  m.def("comm_counts() -> str", &comm_counts);
  m.def("comm_counts_reset() -> ()", &comm_counts_reset);
}
