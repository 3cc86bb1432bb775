// The tensors among the arguments or results of a module's forward, including those in lists, tuples and optionals.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor {

// Gets the tensors among the arguments (or results) of forward, in order, those in lists, tuples and optionals one by
// one, and may replace them; undefined ones are included.
//
//   TensorsFn shard_batch = [](std::vector<at::Tensor>& tensors, const DeviceMesh& mesh) {
//     for (at::Tensor& t : tensors) t = distribute_tensor(t, mesh, {Shard(0)});
//   };
using TensorsFn = std::function<void(std::vector<at::Tensor>& tensors, const DeviceMesh& mesh)>;

namespace internal {

inline void collect(at::Tensor& t, std::vector<at::Tensor*>& out) { out.push_back(&t); }
template <typename T>
void collect(std::optional<T>& value, std::vector<at::Tensor*>& out);
template <typename T>
void collect(std::vector<T>& values, std::vector<at::Tensor*>& out);
template <typename... Ts>
void collect(std::tuple<Ts...>& values, std::vector<at::Tensor*>& out);
template <typename T, typename = std::enable_if_t<!std::is_convertible_v<T&, at::Tensor&>>>
void collect(T&, std::vector<at::Tensor*>&) {}  // no tensors in this type

template <typename T>
void collect(std::optional<T>& value, std::vector<at::Tensor*>& out) {
  if (value) collect(*value, out);
}
template <typename T>
void collect(std::vector<T>& values, std::vector<at::Tensor*>& out) {
  for (auto& v : values) collect(v, out);
}
template <typename... Ts>
void collect(std::tuple<Ts...>& values, std::vector<at::Tensor*>& out) {
  std::apply([&](auto&... v) { (collect(v, out), ...); }, values);
}

template <typename T>
void edit_tensors(const TensorsFn& fn, T& value, const DeviceMesh& mesh, const char* what) {
  if (!fn) return;
  std::vector<at::Tensor*> places;
  collect(value, places);
  std::vector<at::Tensor> tensors;
  for (at::Tensor* p : places) tensors.push_back(*p);
  fn(tensors, mesh);
  TORCH_CHECK_VALUE(tensors.size() == places.size(), "[DistributedModule] ", what, " got ", places.size(),
                    " tensors and left ", tensors.size(), "; it may replace them, not add or remove any");
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(tensors[i]);
}

}  // namespace internal
}  // namespace dtensor
