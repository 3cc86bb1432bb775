// A distributed tensor under its own type: what is known of its layout, its parts, and how to print it.
//
//   DTensor y(torch::embedding(table, ids));   // any at::Tensor that is distributed
//   y.placements();                            // [Replicate, MaskPartial]
//   std::cout << y;                            // f32[8, 64, 512](R MaskP) @ mesh(dp=2, tp=2), and who holds what
//   torch::relu(y);                            // converts to at::Tensor wherever one is wanted
//
// A handle like at::Tensor: copies refer to the same tensor. Nothing here but full_tensor() and redistribute()
// communicates: the rest may be called on one rank alone, at any time.
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

  // The parts of this process's ranks, in the order of mesh().local_ranks(), to read: the very memory, outside
  // autograd. Do not write to it: mutable_local_tensors() (from_local.h) is for that. None in an abstract world.
  // Errors: no such local rank (IndexError); the parts are not there yet, see fetch_parts() (c10::Error).
  at::Tensor local(int64_t i = 0) const;
  std::vector<at::Tensor> locals() const;
  // Shape of the i-th local rank's part; of any rank's, also one that another process owns.
  std::vector<int64_t> local_shape(int64_t i = 0) const;
  std::vector<int64_t> shape_on_rank(int64_t rank) const;

  // As the free functions of redistribute.h; differentiable.
  std::vector<at::Tensor> to_local(std::optional<Placements> grad_placements = std::nullopt) const;
  at::Tensor full_tensor(std::optional<Placements> grad_placements = std::nullopt) const;
  DTensor redistribute(const Placements& to) const { return DTensor(dtensor::redistribute(tensor_, to)); }
  // What redistribute(to) would do, and what it would cost; include plan/redistribute_plan.h to look at it.
  RedistributePlan plan_to(const Placements& to) const;

  // nullopt: no gradient. Error (TypeError): a gradient that is plain.
  std::optional<DTensor> grad() const;

  // What operator<< writes.
  std::string to_string() const;

 private:
  at::Tensor tensor_;
};

// One line, "f32[10, 8](R S(0)) @ mesh(dp=2, tp=2)"; a picture of which rank holds what (copies: "0,2"; addends: "0+1")
// where at most two dims are sharded; the parts' values where they are few and there. No communication.
std::ostream& operator<<(std::ostream& os, const DTensor& t);

// Writes any tensor to standard output: a distributed one as above, a plain one as ATen does.
void print(const at::Tensor& t);

}  // namespace dtensor
