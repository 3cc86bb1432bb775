// Models that are laid out before anything is allocated.
//
//   std::shared_ptr<Model> model;
//   {
//     MeshScope shapes(mesh.meta());             // what is made here has a shape and no data, torch::empty() too
//     model = std::make_shared<Model>(config);
//   }
//   distribute_module(*model, mesh, shard);      // says which part is whose
//   to_empty(*model);                            // every rank allocates its own part
//   torch::nn::init::normal_(model->weight);     // and fills it: the values do not depend on the mesh
//
// Tensors on mesh.meta() say so: is_meta(), and device "meta". Operators give results there, by the same decisions as
// with data; CommDebugMode counts what would be communicated. Reading a value is an error. Source: torch's meta device,
// Module.to_empty.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace dtensor {

// Gives the distributed parameters and buffers of `module` that are on the device "meta" memory on the mesh that has
// data, in their layouts. What it holds is arbitrary, and replicas may differ, until something is written to all of it.
// The tensors stay the same ones, to optimizers, too; those that were tied still are. Gradients go.
// Does nothing to other tensors. Error (ValueError): a plain tensor on "meta", which cannot become one that has data.
void to_empty(torch::nn::Module& module);

// The same of one tensor: a new one that has memory, requiring grad if `tensor` does. `tensor` itself, if it has.
// torch::empty_like(tensor, device), with the device of the mesh, does so, too.
at::Tensor to_empty(const at::Tensor& tensor);

// The layout, shape and dtype of a distributed tensor, without its data: on mesh.meta(). No autograd.
at::Tensor to_meta(const at::Tensor& tensor);

}  // namespace dtensor
