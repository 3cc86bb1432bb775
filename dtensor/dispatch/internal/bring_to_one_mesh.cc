// Tensors without dims on other meshes than the tensors they are used with, such as the norm of all gradients of a
// pipeline whose stages have their own meshes: bring_to_one_mesh().
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

std::string with_ranks(const DeviceMesh& mesh) {
  return c10::str(mesh.to_string(), " of ranks ", c10::IntArrayRef(mesh.ranks()), " of world ", mesh.world().name());
}

bool contains_all(const DeviceMesh& mesh, const DeviceMesh& other) {
  return std::all_of(other.ranks().begin(), other.ranks().end(), [&](int64_t rank) { return mesh.contains(rank); });
}

// Whether `t` may be moved to any mesh of its world. The gradient of a tensor that was moved comes back with dims.
bool is_movable(const OpInfo& info, const Inputs& in, size_t k) {
  const at::Tensor& t = in.tensors[k];
  return !info.args[in.arg_of[k]].written && (t.dim() == 0 || (in_backward() && spec_of(t)->is_replicated()));
}

// The mesh determined by the inputs, if any.
DeviceMesh mesh_of_call(const OpInfo& info, const Inputs& in) {
  std::optional<size_t> first;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!is_dtensor(t) || is_movable(info, in, k)) continue;
    if (!first) first = k;
    const DeviceMesh &mesh = spec_of(t)->mesh(), &other = spec_of(in.tensors[*first])->mesh();
    TORCH_CHECK(mesh == other, info.name, ": argument '", arg_name(info, in, static_cast<int>(k)), "' is on ",
                with_ranks(mesh), " and argument '", arg_name(info, in, static_cast<int>(*first)), "' on ",
                with_ranks(other),
                ". All distributed arguments of an operator that have dims must share one mesh: slice one mesh, or "
                "redistribute.");
  }
  if (first) return spec_of(in.tensors[*first])->mesh();
  // Of those with dims, in backward, the one whose ranks all others include.
  DeviceMesh least;
  for (const at::Tensor& t : in.tensors) {
    if (!is_dtensor(t) || t.dim() == 0) continue;
    if (!least.defined() || spec_of(t)->mesh().ranks().size() < least.ranks().size()) least = spec_of(t)->mesh();
  }
  return least;
}

// The mesh that contains all of the ranks, or a new one.
DeviceMesh mesh_over_all(const Inputs& in, const World& world) {
  std::vector<int64_t> ranks;
  for (const at::Tensor& t : in.tensors) {
    if (!is_dtensor(t)) continue;
    const auto& own = spec_of(t)->mesh().ranks();
    ranks.insert(ranks.end(), own.begin(), own.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const at::Tensor& t : in.tensors) {
    if (is_dtensor(t) && spec_of(t)->mesh().ranks().size() == ranks.size()) return spec_of(t)->mesh();
  }
  const auto size = static_cast<int64_t>(ranks.size());
  return DeviceMesh(world, {size}, {"all"}, std::move(ranks));
}

}  // namespace

DeviceMesh bring_to_one_mesh(const OpInfo& info, Inputs& in) {
  const auto first =
      std::find_if(in.tensors.begin(), in.tensors.end(), [](const at::Tensor& t) { return is_dtensor(t); });
  const DeviceMesh given = spec_of(*first)->mesh();
  DeviceMesh mesh = mesh_of_call(info, in);
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!is_dtensor(t)) continue;
    TORCH_CHECK(spec_of(t)->mesh().world() == given.world(), info.name, ": argument '",
                arg_name(info, in, static_cast<int>(k)), "' is on ", with_ranks(spec_of(t)->mesh()),
                " and another argument on ", with_ranks(given),
                ". Tensors of different worlds cannot be used together: make both meshes of one World.");
  }
  if (!mesh.defined()) mesh = mesh_over_all(in, given.world());
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!is_dtensor(t) || t.dim() == 0 || contains_all(spec_of(t)->mesh(), mesh)) continue;
    TORCH_CHECK(false, info.name, ": argument '", arg_name(info, in, static_cast<int>(k)), "' is on ",
                with_ranks(spec_of(t)->mesh()), " and another argument on ", with_ranks(mesh),
                ". A gradient can be taken to another mesh only if its ranks have it: redistribute it before.");
  }
  std::vector<at::Tensor> moving;
  std::vector<size_t> numbers;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!is_dtensor(t) || spec_of(t)->mesh() == mesh) continue;
    moving.push_back(t);
    numbers.push_back(k);
  }
  const std::vector<Layout> to(moving.size(), Layout(mesh, Placements(mesh.ndim(), Replicate())));
  const CommCause cause{info.name, arg_name(info, in, static_cast<int>(numbers.front())), current_scope().module_path,
                        /*implicit=*/true};
  const std::vector<at::Tensor> moved = redistribute_below_autograd(moving, to, cause);
  for (size_t n = 0; n < numbers.size(); ++n) in.tensors[numbers[n]] = moved[n];
  return mesh;
}

}  // namespace dtensor::internal
