// One training step of a small Llama under each kind of parallelism, on the ranks of an abstract world: what it
// communicates and holds, measured and by formula. docs/training.md shows both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

// Of forward and backward, on the rank that has most. Of a pipeline, of all stages together.
struct StepNumbers {
  int64_t collectives = 0;
  int64_t bytes = 0;        // received
  int64_t state_bytes = 0;  // of parameters and gradients

  friend bool operator==(const StepNumbers&, const StepNumbers&) = default;
};

struct ParallelismRow {
  std::string name;  // "tensor parallel"
  std::string mesh;  // "dp=2, tp=4"
  StepNumbers measured, formula;
  int64_t peak_bytes = 0;    // of all distributed tensors, measured
  int64_t peak_formula = 0;  // the same, without the smallest tensors: within 1 %
};

std::vector<ParallelismRow> parallelism_rows();

// A line for each, with what was measured.
std::string to_string(const std::vector<ParallelismRow>& rows);

}  // namespace examples
