// A random program over numbered tensors: a value that can be run on plain and on distributed tensors, shrunk, and
// printed.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "placement/placement.h"

namespace dtensor::fuzz {

struct TensorRef {
  int id = -1;  // -1: no tensor
  friend bool operator==(const TensorRef&, const TensorRef&) = default;
};

struct TensorRefs {
  std::vector<int> ids;  // -1: no tensor
  friend bool operator==(const TensorRefs&, const TensorRefs&) = default;
};

// An argument of an operator. monostate: None.
using Argument =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                 std::vector<bool>, c10::ScalarType, c10::MemoryFormat, TensorRef, TensorRefs>;

// A tensor that exists before the first step.
struct Leaf {
  int id = 0;
  c10::ScalarType dtype = c10::ScalarType::Double;
  std::vector<int64_t> sizes;
  std::vector<double> values;  // row-major; complex numbers are pairs
  Placements placements;
  bool requires_grad = false;
  uint64_t addends = 0;  // seed of a Partial's addends
};

// One call. Its k-th result (elements of lists one by one) is the tensor `first_id + k`, unless it is a written
// argument.
struct Step {
  std::string op;              // "aten::add.Tensor", or kRedistribute
  std::vector<Argument> args;  // in schema order, all of them
  int first_id = 0;
  Placements placements;  // of kRedistribute
};

inline constexpr char kRedistribute[] = "redistribute";

struct Program {
  std::vector<int64_t> mesh = {2};
  std::vector<Leaf> leaves;
  std::vector<Step> steps;
  int order = 0;  // of gradients taken at the end: 0, 1 or 2
  enum class Seeds { kReplicate, kLikeOutput, kPartial } seeds = Seeds::kReplicate;  // seed of the outputs' gradients
  bool replicate_unsupported = false;
};

// The tensors that a step reads or writes.
std::vector<int> inputs_of(const Step& step);
// Drops the steps that read tensors which do not exist (any more), and the leaves that no step reads.
void drop_dangling(Program& program);
bool is_partial(const Leaf& leaf);

// One line per leaf and step.
std::string to_string(const Program& program);
std::string to_string(const Argument& argument);

}  // namespace dtensor::fuzz
