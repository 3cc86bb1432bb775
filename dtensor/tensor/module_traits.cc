#include "dtensor/tensor/module_traits.h"

#include <utility>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

void change_module_traits(const at::Tensor& t, const std::function<void(ModuleTraits&)>& change) {
  auto& present = meta_without_sync(t).storage->module_traits;
  ModuleTraits traits = present ? *present : ModuleTraits();
  change(traits);
  present = std::make_shared<const ModuleTraits>(std::move(traits));
}

MixedPrecision mixed_precision_of(const at::Tensor& t) {
  const auto& traits = meta_without_sync(t).storage->module_traits;
  return traits ? traits->mixed_precision : MixedPrecision();
}

void keep_module_traits(const at::Tensor& from, const at::Tensor& to) {
  if (!is_dtensor(from)) return;
  const LocalStorage& source = *meta_without_sync(from).storage;
  LocalStorage& target = *meta_without_sync(to).storage;
  const bool is_cast = source.module_traits && source.module_traits->cast_of;  // `to` has other values
  if (!target.module_traits || target.module_traits->cast_of)
    target.module_traits = is_cast ? nullptr : source.module_traits;
  if (!target.style) target.style = source.style;
  if (!target.gradient_bucket) target.gradient_bucket = source.gradient_bucket;
}

}  // namespace dtensor::internal
