// What a parallel style means for a type of module: placements of its parameters, input and output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel_style.h"

namespace torch::nn {
class Module;
}

namespace dtensor::internal {

struct StyleOfModule {
  std::vector<ParameterPlacement> parameters;  // all of the module's own; empty: they stay as they are
  std::optional<Placement> input, output;
  bool is_table = false;  // an Embedding or EmbeddingBag
};

// REQUIRES: a style of parallel_style.h. Errors (ValueError), in the name of parallelize_module: the module has no
// parameters of its own, or no such one; the style does not exist for its type. The text names path and type.
StyleOfModule style_of_module(const ParallelStyle& style, torch::nn::Module& module, const std::string& path);

// The style that parallelize_module() gave to `module` itself, not to another one that shares its parameters; null:
// none.
std::shared_ptr<ModuleStyle> own_style(const torch::nn::Module& module);
// The same for reports: else that of the module at `path`, of which `module` may be a copy, or the only style that its
// parameters have.
std::shared_ptr<ModuleStyle> present_style(const torch::nn::Module& module, const std::string& path);

// Or EmbeddingBag.
bool is_embedding(const torch::nn::Module& module);
// Whether ColwiseParallel and RowwiseParallel exist for its type.
bool has_features(torch::nn::Module& module);
// The defined parameters that belong to `module` itself, not to its submodules.
std::vector<std::string> own_parameters(const torch::nn::Module& module);

}  // namespace dtensor::internal
