#include "dtensor/tensor/module_traits.h"

#include <utility>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

void change_module_traits(const at::Tensor& t, const std::function<void(ModuleTraits&)>& change) {
  auto& present = meta_without_sync(t).storage->parameter.make().traits;
  ModuleTraits traits = present ? *present : ModuleTraits();
  change(traits);
  present = std::make_shared<const ModuleTraits>(std::move(traits));
}

MixedPrecision mixed_precision_of(const at::Tensor& t) {
  const auto& traits = meta_without_sync(t).storage->parameter->traits;
  return traits ? traits->mixed_precision : MixedPrecision();
}

void keep_module_traits(const at::Tensor& from, const at::Tensor& to) {
  if (!is_dtensor(from)) return;
  const auto& given = meta_without_sync(from).storage->parameter;
  auto& kept = meta_without_sync(to).storage->parameter;
  if (given.if_made() == nullptr && kept.if_made() == nullptr) return;
  const ParameterState& source = *given;
  ParameterState& target = kept.make();
  const bool is_cast = source.traits && source.traits->cast_of;  // `to` has other values
  if (!target.traits || target.traits->cast_of) target.traits = is_cast ? nullptr : source.traits;
  if (!target.style) target.style = source.style;
  if (!target.gradient_bucket) target.gradient_bucket = source.gradient_bucket;
}

}  // namespace dtensor::internal
