// Calls that plain LibTorch accepts, but whose results are not defined: they cannot be compared.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <stdexcept>

namespace dtensor::fuzz {

struct UndefinedResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Errors: UndefinedResult, with the reason. The arguments are plain.
void check_defined(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments);

}  // namespace dtensor::fuzz
