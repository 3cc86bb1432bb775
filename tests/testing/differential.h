// Differential testing of operators: distributed against plain ATen, in float64, forward and backward.
//
//   OpCase c{"mm", [](auto& t) { return std::vector{t[0].mm(t[1])}; }, {{5, 6}, {6, 3}}};
//   check_op(c);
//
// runs the operator on meshes of test_meshes() with combinations of placements of its inputs out of R, S(d)
// for each dim, P(sum), and compares outputs and input gradients (of a random linear function of the outputs) with
// plain ATen: on every rank, and sizes, strides and dtype too. Gradients of the outputs come in turn laid out like the
// output, replicated, and as P(sum).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

struct OpCase {
  std::string name = {};
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn = {};
  std::vector<std::vector<int64_t>> shapes = {};  // of the inputs
  // Makes input i; unset: uniform in [-1, 1) float64.
  std::function<at::Tensor(size_t i, const std::vector<int64_t>& shape)> make = {};
  std::vector<bool> grad = {};  // which inputs require grad; empty: all floating ones
  bool partial_inputs = true;   // also try P(sum) inputs (floating ones)
  double tolerance = 1e-9;
  // Asserts which placements may not communicate in forward: given mesh-dim placements of the inputs on a 1-d mesh,
  // true if the operator must issue no collective. Unset: no assertion.
  std::function<bool(const std::vector<Placement>&)> silent = {};
  // Combinations (one list per input) that the operator must reject with a c10::Error. Unset: none may fail.
  std::function<bool(const std::vector<Placements>&)> rejects = {};
  bool strided_inputs = false;               // also try StridedShard(d, 2)
  std::vector<ReduceOp> more_partials = {};  // kinds of Partial to try in addition to the sum
};

// What check_op() runs on: DTENSOR_TEST_DEVICE, as "cuda:0", else the CPU.
c10::Device test_device();

// Meshes (4), (2,2), (3), (2,3) of World::local on test_device(), made once.
const std::vector<DeviceMesh>& test_meshes();

// In the long form on all test meshes: every combination of layouts on a 1-d mesh, `max_2d` of them on a 2-d mesh. In
// the short form on one mesh of each number of dims, which depends on the case's name: 40 combinations, and `max_2d`
// but at most 32. Where there are more, a sample with a fixed seed. Fails the current Catch2 test with op, mesh,
// placements and the first differing element. On a GPU a case that plain ATen does not take there, since its function
// makes tensors on the CPU or since ATen has no such kernel, is left out, and a warning says so.
void check_op(const OpCase& c, int max_2d = 64);

// `full` as the locals of `placements` (Partial: random addends that sum to it) on the devices of the mesh, made into a
// distributed tensor.
at::Tensor lay_out(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements);

// The part of `full` that the i-th local rank holds in a layout without Partials.
at::Tensor part_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements, int64_t i);

// Calls an operator by name ("aten::sum.dim_IntList"), as user code would. Arguments in schema order; missing ones at
// the end take their defaults. Returns the tensors among the results, lists flattened.
std::vector<at::Tensor> call_op(const std::string& op, std::vector<c10::IValue> args);

// The fault of `actual` as a distributed form of `expected`: metadata, shapes of the local tensors, or a value on some
// rank. Reduces Partials itself. nullopt: none.
std::optional<std::string> difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance = 1e-9);

}  // namespace dtensor::testing
