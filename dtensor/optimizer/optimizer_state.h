// The states of LibTorch's optimizers, by name. The only code that depends on their classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace dtensor::internal {

// Fields of one parameter's state: "exp_avg", "max_exp_avg_sq", ...; pointers into the given state, undefined tensors
// included.
struct ParamStateFields {
  std::vector<std::pair<std::string, at::Tensor*>> tensors;
  int64_t* step = nullptr;  // null: it counts none
};

// nullopt: of an optimizer that is not known here.
std::optional<ParamStateFields> fields_of(torch::optim::OptimizerParamState& state);

// An empty state of a parameter of that optimizer; null: not known.
std::unique_ptr<torch::optim::OptimizerParamState> new_param_state(const torch::optim::Optimizer& optimizer);

// Options of a parameter group: "lr", "weight_decay", "beta1", ...; pointers into `options`. Empty: not known.
std::vector<std::pair<std::string, std::variant<bool*, double*>>> fields_of(torch::optim::OptimizerOptions& options);

}  // namespace dtensor::internal
