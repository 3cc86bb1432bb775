#include "dtensor/parallel/style_of_module.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "absl/strings/str_join.h"

namespace dtensor::internal {
namespace {

namespace nn = torch::nn;

std::string described_module(const nn::Module& module, const std::string& path) {
  return (path.empty() ? "the module" : "'" + path + "'") + ", a " + module.name();
}

// The dims of a module's weight, and of its activations, that are features.
struct FeatureDims {
  int64_t out = 0, in = 1;     // of the weight
  int64_t of_activation = -1;  // from the end, as a batch dim may be missing
  int64_t groups = 1;
  bool transposed = false;
};

template <size_t D>
bool is_convolution(nn::Module& module, FeatureDims& dims) {
  const auto describe = [&](const auto& options) {
    dims.of_activation = -1 - static_cast<int64_t>(D);
    dims.groups = options.groups();
    dims.transposed = options.transposed();
    if (dims.transposed) std::swap(dims.out, dims.in);
    return true;
  };
  if constexpr (D == 1) {
    if (auto* m = module.as<nn::Conv1dImpl>()) return describe(m->options);
    if (auto* m = module.as<nn::ConvTranspose1dImpl>()) return describe(m->options);
  } else if constexpr (D == 2) {
    if (auto* m = module.as<nn::Conv2dImpl>()) return describe(m->options);
    if (auto* m = module.as<nn::ConvTranspose2dImpl>()) return describe(m->options);
  } else {
    if (auto* m = module.as<nn::Conv3dImpl>()) return describe(m->options);
    if (auto* m = module.as<nn::ConvTranspose3dImpl>()) return describe(m->options);
  }
  return false;
}

// Linear and convolutions. nullopt: another type.
std::optional<FeatureDims> feature_dims(nn::Module& module) {
  FeatureDims dims;
  if (module.as<nn::LinearImpl>() != nullptr) return dims;
  if (is_convolution<1>(module, dims) || is_convolution<2>(module, dims) || is_convolution<3>(module, dims))
    return dims;
  return std::nullopt;
}

StyleOfModule by_features(const FeatureDims& dims, bool colwise, const std::string& what, const std::string& kind) {
  // With groups, dim 1 of a weight counts the channels of one group.
  TORCH_CHECK_VALUE(dims.groups == 1 || (colwise && !dims.transposed), "[parallelize_module] ", what, " with ",
                    dims.groups, " groups, cannot be ", kind,
                    ", since a dim of its weight counts the channels of one group: shard the groups by "
                    "ParameterStyle({{\"weight\", Shard(0)}}, {.input = Shard(dim), .output = Shard(dim)})");
  const Placement features = Shard(dims.of_activation);
  if (colwise) return {{{"weight", Shard(dims.out)}, {"bias", Shard(0)}}, Replicate(), features};
  return {{{"weight", Shard(dims.in)}, {"bias", Replicate()}}, features, Replicate()};
}

StyleOfModule sharded_features(nn::Module& module, bool colwise, const std::string& what, const std::string& kind) {
  if (is_embedding(module)) {
    const Placement output = colwise ? Shard(-1) : Replicate();
    return {{{"weight", Shard(colwise ? 1 : 0)}}, Replicate(), output, /*is_table=*/true};
  }
  const auto dims = feature_dims(module);
  TORCH_CHECK_VALUE(dims.has_value(), "[parallelize_module] ", what, ", cannot be ", kind,
                    ", which exists for Linear, Embedding, EmbeddingBag and convolutions: give the placements of its "
                    "parameters by ParameterStyle({{\"weight\", Shard(0)}}, {.input = Replicate()})");
  return by_features(*dims, colwise, what, kind);
}

}  // namespace

bool is_embedding(const nn::Module& module) {
  return module.as<nn::EmbeddingImpl>() != nullptr || module.as<nn::EmbeddingBagImpl>() != nullptr;
}

bool has_features(nn::Module& module) { return is_embedding(module) || feature_dims(module).has_value(); }

std::shared_ptr<ModuleStyle> own_style(const nn::Module& module) {
  for (const at::Tensor& t : module.parameters(/*recurse=*/false)) {
    if (!has_style(t)) continue;
    for (const auto& style : meta_without_sync(t).storage->parameter->style->modules()) {
      if (style->module == &module) return style;
    }
  }
  return nullptr;
}

std::shared_ptr<ModuleStyle> present_style(const nn::Module& module, const std::string& path) {
  if (auto own = own_style(module)) return own;
  const std::vector<std::shared_ptr<ModuleStyle>>* first = nullptr;
  for (const at::Tensor& t : module.parameters(/*recurse=*/false)) {
    if (!has_style(t)) continue;
    const auto& styles = meta_without_sync(t).storage->parameter->style->modules();
    for (const auto& style : styles) {
      if (style->path == path) return style;
    }
    if (first == nullptr) first = &styles;
  }
  // A path from another module than the one that was parallelized.
  if (first == nullptr || first->size() > 1 || first->front()->is_table != is_embedding(module)) return nullptr;
  return first->front();
}

std::vector<std::string> own_parameters(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& p : module.named_parameters(/*recurse=*/false)) {
    if (p.value().defined()) names.push_back(p.key());
  }
  return names;
}

StyleOfModule style_of_module(const ParallelStyle& style, nn::Module& module, const std::string& path) {
  const std::vector<std::string> own = own_parameters(module);
  const std::string what = described_module(module, path);
  TORCH_CHECK_VALUE(!own.empty(), "[parallelize_module] ", what, ", has no parameters of its own, so that ", style.kind,
                    " has no operators to apply to: match its children, or change what it gets and returns by "
                    "distribute_module() with input_fn and output_fn");
  StyleOfModule of;
  if (style.kind == "ColwiseParallel" || style.kind == "RowwiseParallel") {
    of = sharded_features(module, style.kind == "ColwiseParallel", what, style.kind);
  } else if (style.kind == "SequenceParallel") {
    for (const std::string& name : own) of.parameters.push_back({name, Replicate()});
    of.input = of.output = Shard(1);
    if (style.layouts.input) of.output = style.layouts.input;
  } else if (style.kind == "ParameterStyle") {
    of.parameters = style.parameters;
    for (const ParameterPlacement& p : of.parameters) {
      TORCH_CHECK_VALUE(std::find(own.begin(), own.end(), p.name) != own.end(), "[parallelize_module] ", what,
                        ", has no parameter '", p.name, "' of its own; it has ", absl::StrJoin(own, ", "));
    }
    for (const std::string& name : own) {
      const auto is_named = [&](const ParameterPlacement& p) { return p.name == name; };
      if (std::none_of(of.parameters.begin(), of.parameters.end(), is_named)) of.parameters.push_back({name, {}});
    }
  }
  const auto is_missing = [&](const ParameterPlacement& p) {
    return std::find(own.begin(), own.end(), p.name) == own.end();
  };
  std::erase_if(of.parameters, is_missing);  // a bias
  of.is_table = is_embedding(module);
  if (style.layouts.input) of.input = style.layouts.input;
  if (style.layouts.output) of.output = style.layouts.output;
  return of;
}

}  // namespace dtensor::internal
