// What a model communicates, beside what an expert's hand-written version of it does.
//
// Formulas count what one rank receives: an all-reduce of N bytes over n ranks 2 N (n - 1) / n, an all-gather to or a
// reduce-scatter from N bytes N (n - 1) / n, an all-to-all of N local bytes N (n - 1) / n.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

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

// A part of a step: "forward".
struct Phase {
  std::string name;
  std::function<void()> run;
  Traffic by_hand;
};

// A model on a mesh.
struct Pattern {
  std::string name;
  DeviceMesh mesh;
  std::vector<Phase> phases;              // run in order
  double calls_gate = 1, bytes_gate = 1;  // of what is done by hand
};

// Each makes its model on `mesh`, whose world may be an abstract one. `scale`: 1 for sizes of tests.
Pattern llama_pattern(const DeviceMesh& mesh, int64_t scale);
Pattern llama_generation_pattern(const DeviceMesh& mesh, int64_t scale);

}  // namespace dtensor::benchmarks
