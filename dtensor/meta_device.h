// Lays out models before anything is allocated.
//
//   std::shared_ptr<Model> model;
//   {
//     MeshScope shapes(mesh.meta());             // tensors made here have no data, with torch::empty() too
//     model = std::make_shared<Model>(config);
//   }
//   distribute_module(*model, mesh, shard);      // assigns the parts to ranks
//   to_empty(*model);                            // every rank allocates its own part
//   torch::nn::init::normal_(model->weight);     // and fills it: the values do not depend on the mesh
//
// Tensors on mesh.meta() have is_meta() and device "meta". Operators on them return meta tensors, by the same decisions
// as with data; CommDebugMode counts what would be communicated. Reading a value is an error. Source: torch's meta
// device, Module.to_empty.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace dtensor {

// Allocates memory, on the mesh that has data, for the distributed parameters and buffers of `module` that are on the
// device "meta", in their layouts. The values are arbitrary, and replicas may differ, until the whole tensor is
// written. The tensors keep their identity, also for optimizers; tied ones stay tied. Gradients are dropped.
// Does not change other tensors. Error (ValueError): a plain tensor on "meta", which cannot get data in place.
void to_empty(torch::nn::Module& module);

// The same for one tensor: returns a new one with memory, requiring grad if `tensor` does; or `tensor` itself, if it
// has memory. Equivalent to torch::empty_like(tensor, device) with the device of the mesh.
at::Tensor to_empty(const at::Tensor& tensor);

// The layout, shape and dtype of a distributed tensor, without its data: on mesh.meta(). No autograd.
at::Tensor to_meta(const at::Tensor& tensor);

}  // namespace dtensor
