// Parallel styles on a module: its parameters become distributed, and operators that compute with them take and give
// the layouts of the style.
//
//   parallelize_module(*model, mesh,
//                      {{"layers.*.attn.w[qkv]", ColwiseParallel()},
//                       {"layers.*.attn.wo", RowwiseParallel({.output = Shard(1)})},
//                       {"layers.*.norm", SequenceParallel()}},
//                      {.mesh_dim = "tp"});
//
// C++ modules have no forward hooks, so the layouts of activations travel with the parameters: they apply to each
// operator that the program calls with a parameter of the module and another distributed tensor, be it in the module,
// in a Sequential, or in torch::linear() with its weight. Differentiable: the input is redistributed before, the result
// after. The input is the first other distributed tensor with dims, in the order of arguments.
//
// Such an operator is one of ATen's composite ones (linear, matmul, conv2d, layer_norm, ...) or of those listed in
// dispatch/style_kernels.cc (addmm, mm, bmm, mv, add, sub, mul, div, embedding, index_select, where, ...).
// Operators in place or with out=, views, `cat` and others not listed, and custom operators follow no style; nor do
// elementwise ones on tensors of one shape (optimizers, averages). An elementwise operator on the last result of the
// same style, such as the sum in matmul(x, w.t()) + b, takes that as it is. The style of a table governs lookups alone.
// A weight that is computed from parameters (weight norm) does not have their style, nor does a copy by clone().
//
// Source: torch.distributed.tensor.parallel.parallelize_module.
#pragma once

#include <string>

#include "dtensor/mixed_precision.h"
#include "dtensor/parallel_style.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace dtensor {

struct ParallelizeOptions {
  std::string mesh_dim = "";            // the mesh dim that the styles are about; "": the only one
  MixedPrecision mixed_precision = {};  // of all parameters of the module, with a style or without; not kept in plans
};

// Distributes `module` on `mesh` as distribute_module() does: parameters of matched modules as their styles say on the
// mesh dim, all others replicated there. On the other mesh dims they are replicated, or stay as they are if they are on
// this mesh already. A parameter that has a mixed precision from an earlier call of parallelize_module() keeps it, so
// that a submodule may have another one: call it for that first. Errors (ValueError): no mesh or no such dim; a pattern
// that matches no module (the text names the nearest); two patterns that give one module different styles; a style that
// does not fit the type of the module, or a module that has one already; tied parameters that get different layouts; a
// parameter of a matched module that is distributed on another mesh; a dtype of mixed_precision that is not a
// floating-point one, or a parameter of a fully_shard() group with another mixed precision; those of
// distribute_module(). After an error the module is unchanged.
void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options = {});

// Error (ValueError): styles of the module that no operator followed since parallelize_module() or the last check, with
// their paths. Call it after a step. Tied modules are distinguished by their own tensors: those that share one tensor
// object count as followed together, as do those of which an operator takes a view of the weight, w.t().
void check_styles_ran(const torch::nn::Module& module);

// A table with a line per module that has parameters: its style, or what decided the layouts of its parameters without
// one ("user": the program, by shard_parameter() or otherwise; "engine": they are replicated, as nothing was said);
// these layouts; the layouts in which its last operator took the input and gave the output, and whether the style
// decided them; the number of these operators ("never ran": 0).
std::string explain_module(const torch::nn::Module& module);

// The plan that gives a new model the layouts that `module` has on the mesh dim: the styles that were applied, and for
// modules that a program distributed otherwise a ParameterStyle. Errors (ValueError): no mesh or no such dim; a
// parameter on another mesh.
ParallelPlan plan_of_module(const torch::nn::Module& module, const DeviceMesh& mesh,
                            const ParallelizeOptions& options = {});

}  // namespace dtensor
