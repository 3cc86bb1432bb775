// Compares the communication of a model with that of an expert's hand-written version.
//
// Formulas count what one rank receives: an all-reduce of N bytes over n ranks 2 N (n - 1) / n, an all-gather to or a
// reduce-scatter from N bytes N (n - 1) / n, an all-to-all of N local bytes N (n - 1) / n.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace dtensor::benchmarks {

struct Traffic {
  int64_t calls = 0;
  double bytes = 0;

  Traffic& operator+=(const Traffic& t) { return calls += t.calls, bytes += t.bytes, *this; }
  friend Traffic operator+(Traffic a, const Traffic& b) { return a += b; }
  friend Traffic operator*(int64_t n, const Traffic& t) { return {n * t.calls, static_cast<double>(n) * t.bytes}; }
};

// One call each; none over a single rank. `bytes`: of the whole tensor.
Traffic all_reduce(double bytes, int64_t ranks);
Traffic all_gather(double bytes, int64_t ranks);
Traffic reduce_scatter(double bytes, int64_t ranks);
Traffic all_to_all(double local_bytes, int64_t ranks);

// The size of a mesh dim; 1 if the mesh has none of this name.
int64_t size_of(const DeviceMesh& mesh, const std::string& name);

// One all-reduce over `ranks` of every parameter's gradient, of the part that a rank holds.
Traffic gradients(const torch::nn::Module& module, int64_t ranks);
// Bytes of all parameters, each of them whole.
double bytes_of(const torch::nn::Module& module);

// A part of a step: "forward".
struct Phase {
  std::string name;
  std::function<void()> run;
  Traffic by_hand;
  double work_by_hand = 1;  // FLOP of a rank in the hand-written version, relative to all / ranks
};

// A model on a mesh.
struct Pattern {
  DeviceMesh mesh;
  std::vector<Phase> phases;              // run in order
  double calls_gate = 1, bytes_gate = 1;  // of what is done by hand
};

// The phases "forward" and "backward" of a model whose loss `loss` computes, inside a MeshScope.
Pattern training(const DeviceMesh& mesh, std::function<at::Tensor()> loss, const Traffic& forward,
                 const Traffic& backward);
// A loop: its first two rounds, of which the second has what the first left behind. `start`: what by hand comes before
// the first.
Pattern loop(const DeviceMesh& mesh, std::function<void()> round, const Traffic& by_hand, const Traffic& start = {});

}  // namespace dtensor::benchmarks
