// A distributed module that replaces the original anywhere: in Sequential, in AnyModule, as a submodule, in a variable
// of the original's type. (Templates over torch::nn: compiled with the program.)
//
//   auto model = distribute_module(Net(), mesh, partition,
//       [](std::vector<at::Tensor>& in, const DeviceMesh& mesh) { in[0] = distribute_tensor(in[0], mesh, {Shard(0)});
//       },
//       [](std::vector<at::Tensor>& out, const DeviceMesh&) { out[0] = full_tensor(out[0]); });
//   model(x);   // inside a MeshScope: arange and masks made in forward are distributed, too
//
// C++ modules have no forward hooks, so the hooks live in a class derived from the original's: it is a `Net` that
// shares the parameters, buffers and submodules of the original under the same names, and extends forward(). Plain
// members (counters, flags) are copied. A call through a pointer to the original's class cannot reach the hooks unless
// forward() is virtual; if they never ran, the first operator that computes with the module's parameters and other
// tensors throws an error. (Not detected for a module without parameters and buffers.)
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dtensor/distribute_module.h"
#include "dtensor/forward_tensors.h"
#include "dtensor/parallel/hook_watch.h"
#include "dtensor/scopes.h"

namespace dtensor {

namespace internal {

template <typename F>
struct SignatureOf;
template <typename C, typename R, typename... Args>
struct SignatureOf<R (C::*)(Args...)> {
  using type = R(Args...);
};
template <typename C, typename R, typename... Args>
struct SignatureOf<R (C::*)(Args...) const> {
  using type = R(Args...);
};

// A forward that is a template, as in Sequential, or overloaded has no single signature: assumed to be Tensor ->
// Tensor.
template <typename M, typename = void>
struct ForwardSignature {
  using type = at::Tensor(at::Tensor);
};
template <typename M>
struct ForwardSignature<M, std::void_t<decltype(&M::forward)>> {
  using type = typename SignatureOf<decltype(&M::forward)>::type;
};

}  // namespace internal

template <typename M, typename Signature = typename internal::ForwardSignature<M>::type>
class DistributedModuleImpl;

// REQUIRES: M is copyable, as modules are by default.
template <typename M, typename R, typename... Args>
class DistributedModuleImpl<M, R(Args...)> : public M {
  static_assert(std::is_copy_constructible_v<M>,
                "a distributed module is a copy of the original that shares its parameters and submodules: the "
                "module's class must be copyable");

 public:
  // `original` is distributed already. `path`: its path in a larger model, for reports.
  DistributedModuleImpl(std::shared_ptr<M> original, DeviceMesh mesh, TensorsFn input_fn = nullptr,
                        TensorsFn output_fn = nullptr, std::string path = "")
      : M((original->name(), std::as_const(*original))),  // name() caches the class name before the copy
        original_(std::move(original)),
        mesh_(std::move(mesh)),
        input_fn_(std::move(input_fn)),
        output_fn_(std::move(output_fn)),
        path_(std::move(path)) {
    name_parameters();
  }

  R forward(Args... args) { return call(std::forward<Args>(args)...); }

  // forward with the original's default arguments: any number of arguments that the original takes.
  template <typename... Given>
  R call(Given&&... given) {
    if (hooks_) hooks_->end();
    MeshScope on_mesh(mesh_);
    ModulePath at_path(path_);
    std::tuple<std::decay_t<Given>...> values(std::forward<Given>(given)...);
    internal::edit_tensors(input_fn_, values, mesh_, "input_fn");
    if constexpr (std::is_void_v<R>) {
      std::apply([&](auto&... v) { this->M::forward(static_cast<Given&&>(v)...); }, values);
    } else {
      R result = std::apply([&](auto&... v) -> R { return this->M::forward(static_cast<Given&&>(v)...); }, values);
      internal::edit_tensors(output_fn_, result, mesh_, "output_fn");
      return result;
    }
  }

  // The module that was distributed; it shares parameters, buffers and submodules with this one.
  const std::shared_ptr<M>& original() const { return original_; }
  const DeviceMesh& mesh() const { return mesh_; }
  // Lets operators compute with the parameters although the hooks never ran: for member functions other than forward,
  // and for parameters that are used elsewhere first.
  void allow_without_hooks() {
    if (hooks_) hooks_->end();
  }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::dynamic_pointer_cast<M>(M::clone(device));
    return std::make_shared<DistributedModuleImpl>(std::move(copy), mesh_, input_fn_, output_fn_, path_);
  }

  void train(bool on = true) override {
    M::train(on);
    original_->train(on);
  }

  void to(at::Device device, at::ScalarType dtype, bool non_blocking = false) override {
    M::to(device, dtype, non_blocking);
    name_parameters();
  }
  void to(at::ScalarType dtype, bool non_blocking = false) override {
    M::to(dtype, non_blocking);
    name_parameters();
  }
  void to(at::Device device, bool non_blocking = false) override {
    M::to(device, non_blocking);
    name_parameters();
  }

 private:
  // Includes new parameters.
  void name_parameters() {
    dtensor::name_parameters(*this, path_);
    if (!input_fn_ && !output_fn_) return;
    if (!hooks_)
      hooks_ = std::make_shared<internal::HookWatch>((path_.empty() ? "" : "'" + path_ + "', ") + "a distributed " +
                                                     this->name());
    internal::watch_hooks(*this, hooks_);
  }

  std::shared_ptr<M> original_;
  DeviceMesh mesh_;
  TensorsFn input_fn_, output_fn_;
  std::string path_;
  std::shared_ptr<internal::HookWatch> hooks_;  // null without hooks
};

// Module holder, like torch::nn::Linear for LinearImpl.
template <typename M>
class DistributedModule : public torch::nn::ModuleHolder<DistributedModuleImpl<M>> {
 public:
  using torch::nn::ModuleHolder<DistributedModuleImpl<M>>::ModuleHolder;

  // The original's default arguments work here; ->forward() takes all of them.
  template <typename... Given>
  decltype(auto) operator()(Given&&... given) {
    return this->get()->call(std::forward<Given>(given)...);
  }
};

// Distributes `module` as the function of three arguments does, and returns the module that replaces it.
template <typename M, typename = std::enable_if_t<std::is_base_of_v<torch::nn::Module, M>>>
DistributedModule<M> distribute_module(const std::shared_ptr<M>& module, const DeviceMesh& mesh,
                                       const PartitionFn& partition_fn, TensorsFn input_fn,
                                       TensorsFn output_fn = nullptr, std::string path = "") {
  TORCH_CHECK_VALUE(module != nullptr, "[distribute_module] the module is null");
  distribute_module(static_cast<torch::nn::Module&>(*module), mesh, partition_fn);
  return std::make_shared<DistributedModuleImpl<M>>(module, mesh, std::move(input_fn), std::move(output_fn),
                                                    std::move(path));
}

// The same for a module holder: torch::nn::Linear, torch::nn::Sequential, ...
template <typename M>
DistributedModule<M> distribute_module(const torch::nn::ModuleHolder<M>& module, const DeviceMesh& mesh,
                                       const PartitionFn& partition_fn, TensorsFn input_fn,
                                       TensorsFn output_fn = nullptr, std::string path = "") {
  return distribute_module(module.ptr(), mesh, partition_fn, std::move(input_fn), std::move(output_fn),
                           std::move(path));
}

}  // namespace dtensor
