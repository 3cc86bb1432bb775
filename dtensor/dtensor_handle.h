// A typed handle for a distributed tensor: its layout, its local tensors, and printing.
//
//   DTensor y(torch::embedding(table, ids));   // any at::Tensor that is distributed
//   y.placements();                            // [Replicate, MaskPartial]
//   std::cout << y;                            // f32[8, 64, 512](R MaskP) @ mesh(dp=2, tp=2), and which rank holds what
//   torch::relu(y);                            // converts to at::Tensor wherever one is wanted
//
// A handle like at::Tensor: copies refer to the same tensor. Only full_tensor() and redistribute() communicate: all
// other functions may be called on a single rank, at any time.
// Source: torch.distributed.tensor.DTensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"

namespace dtensor {

class Spec;               // plan/spec.h
struct RedistributePlan;  // plan/redistribute_plan.h

class DTensor {
 public:
  // Error (TypeError): the tensor is plain or undefined; the text says how to distribute it.
  explicit DTensor(at::Tensor tensor);

  operator const at::Tensor&() const { return tensor_; }
  const at::Tensor& tensor() const { return tensor_; }

  const Spec& spec() const;
  const DeviceMesh& mesh() const;
  const Placements& placements() const;
  // Path of the parameter in its module ("layers.0.attn.weight"), "" for other tensors.
  std::string name() const;

  // The local tensors of this process's ranks, in the order of mesh().local_ranks(), read-only: they share memory with
  // the distributed tensor, outside autograd. To write, use mutable_local_tensors() (from_local.h). None in an abstract
  // world. Errors: no such local rank (IndexError); the parts must be fetched first, see fetch_parts() (c10::Error).
  at::Tensor local(int64_t i = 0) const;
  std::vector<at::Tensor> locals() const;
  // Shape of the i-th local rank's part; the second takes any rank, also one of another process.
  std::vector<int64_t> local_shape(int64_t i = 0) const;
  std::vector<int64_t> shape_on_rank(int64_t rank) const;

  // Like the free functions of redistribute.h; differentiable.
  std::vector<at::Tensor> to_local(std::optional<Placements> grad_placements = std::nullopt) const;
  at::Tensor full_tensor(std::optional<Placements> grad_placements = std::nullopt) const;
  DTensor redistribute(const Placements& to) const { return DTensor(dtensor::redistribute(tensor_, to)); }
  // The plan of redistribute(to), with its cost; include plan/redistribute_plan.h to use it.
  RedistributePlan plan_to(const Placements& to) const;

  // nullopt: no gradient. Error (TypeError): a gradient that is plain.
  std::optional<DTensor> grad() const;

  // The text that operator<< writes.
  std::string to_string() const;
  // For people, several lines on what influences the decisions of operators: shape and layout; whether the engine chose
  // the layout, and whether a write may change it; whether the tensor is a parameter, made by a factory, a copied view
  // (of what, up to date or not), or arriving; its preferred layout; and what is cached for it and its views, in bytes
  // as the limit counts them (remembered_layouts.h). Never communicates.
  std::string explain() const;

 private:
  at::Tensor tensor_;
};

// One line, "f32[10, 8](R S(0)) @ mesh(dp=2, tp=2)"; a picture of which rank holds which part (copies: "0,2"; addends:
// "0+1") if at most two dims are sharded; the parts' values if they are few and available. No communication.
std::ostream& operator<<(std::ostream& os, const DTensor& t);

// Writes any tensor to standard output: a distributed one as above, a plain one as ATen does.
void print(const at::Tensor& t);

}  // namespace dtensor
