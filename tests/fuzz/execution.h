// A running program, on plain or on distributed tensors: the same calls, through LibTorch's dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

// Whether a call writes to it, by the schema: an argument, or a result that aliases one.
bool is_written(const c10::Argument& argument);

// What programs run on: the CPU unless it is set, before the first program of the process runs.
c10::Device program_device();
void set_program_device(c10::Device device);

// The mesh of a shape, of a World::local on program_device(); both are made once.
const DeviceMesh& mesh_of(const std::vector<int64_t>& shape);

// The value of a leaf, as a plain tensor on the CPU without autograd.
at::Tensor value_of(const Leaf& leaf);
// Each rank's addend of a leaf with a Partial, on the CPU: they reduce to its value, exactly for values of few digits.
std::vector<at::Tensor> parts_of(const Leaf& leaf, const DeviceMesh& mesh);

const c10::FunctionSchema& schema_of(const Step& step);  // not of kRedistribute
// The tensors that a step writes to.
std::vector<int> written_by(const Step& step);

class Execution {
 public:
  Execution() = default;                                       // plain, on the CPU
  explicit Execution(c10::Device device) : device_(device) {}  // plain
  explicit Execution(const DeviceMesh& mesh) : device_(mesh.world().device(0)), mesh_(mesh) {}

  void add(const Leaf& leaf);
  void remove(int id) { tensors_.erase(id); }
  // Errors: those of the operator; UndefinedResult (undefined.h) on plain tensors.
  void run(const Step& step);

  // Gradients of a fixed linear function of all results with respect to the leaves that require them; undefined where
  // there is none. Of second order: of a fixed linear function of those.
  std::vector<at::Tensor> gradients(const Program& program, int order) const;

  const std::map<int, at::Tensor>& tensors() const { return tensors_; }
  // Results of the last step that are not tensors.
  const std::vector<c10::IValue>& values() const { return values_; }

 private:
  at::Tensor seed(const at::Tensor& output, Program::Seeds seeds, int number) const;
  std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& leaves,
                                       Program::Seeds seeds) const;

  c10::Device device_ = c10::kCPU;
  DeviceMesh mesh_;  // undefined: plain
  std::map<int, at::Tensor> tensors_;
  std::vector<c10::IValue> values_;
};

}  // namespace dtensor::fuzz
