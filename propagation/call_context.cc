#include "propagation/call_context.h"

#include <algorithm>

namespace dtensor {
namespace {

template <typename Numbers>
bool has_number(const Numbers& numbers, size_t input) {
  return std::find(numbers.begin(), numbers.end(), static_cast<int>(input)) != numbers.end();
}

}  // namespace

bool CallContext::is_default() const {
  return mutable_layouts.empty() && parameters.empty() && factory_inputs.empty() && preferred_layouts.empty() &&
         !partial_inputs_reused && !gradient_target && !limits.any() && !keep_class_shards;
}

bool CallContext::is_mutable(size_t input) const { return has_number(mutable_layouts, input); }

bool CallContext::is_parameter(size_t input) const { return has_number(parameters, input); }

bool CallContext::is_factory_input(size_t input) const { return has_number(factory_inputs, input); }

const Spec* CallContext::preferred_layout(size_t input) const {
  return input < preferred_layouts.size() ? preferred_layouts[input].get() : nullptr;
}

bool CallContext::has_same_hints(size_t a, size_t b) const {
  return is_mutable(a) == is_mutable(b) && is_parameter(a) == is_parameter(b) &&
         is_factory_input(a) == is_factory_input(b) && preferred_layout(a) == preferred_layout(b);
}

void CallContext::append_to_key(CacheKey& key) const {
  key.push_back(!is_default());
  if (is_default()) return;
  const auto append_numbers = [&](const auto& numbers) {
    key.push_back(numbers.size());
    for (const int k : numbers) key.push_back(static_cast<uint64_t>(k));
  };
  key.push_back(gradient_target ? gradient_target->id() : 0);
  key.push_back(partial_inputs_reused);
  key.push_back(static_cast<uint64_t>(limits.max_bytes));
  key.push_back(keep_class_shards);
  append_numbers(mutable_layouts);
  append_numbers(parameters);
  append_numbers(factory_inputs);
  key.push_back(preferred_layouts.size());
  for (const SpecPtr& layout : preferred_layouts) key.push_back(layout ? layout->id() : 0);
}

}  // namespace dtensor
