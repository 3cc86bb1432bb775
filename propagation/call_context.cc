#include "propagation/call_context.h"

#include <algorithm>

namespace dtensor {
namespace {

template <typename Numbers>
bool has_number(const Numbers& numbers, size_t input) {
  return std::find(numbers.begin(), numbers.end(), static_cast<int>(input)) != numbers.end();
}

const MutableLayout* find_mutable(const CallContext& context, size_t input) {
  const auto& all = context.mutable_layouts;
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const MutableLayout& m) { return m.input == static_cast<int>(input); });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace

bool CallContext::is_mutable(size_t input) const { return find_mutable(*this, input) != nullptr; }

bool CallContext::may_become(size_t input, const Placement& from, const Placement& to) const {
  const MutableLayout* layout = find_mutable(*this, input);
  if (layout == nullptr || !layout->dims || from == to) return true;
  return from.is_replicate() && to.is_shard() && (*layout->dims >> to.dim() & 1) != 0;
}

bool CallContext::is_parameter(size_t input) const { return has_number(parameters, input); }

bool CallContext::is_factory_input(size_t input) const { return has_number(factory_inputs, input); }

const Spec* CallContext::preferred_layout(size_t input) const {
  return input < preferred_layouts.size() ? preferred_layouts[input].get() : nullptr;
}

void CallContext::append_to_key(CacheKey& key) const {
  const auto append_numbers = [&](const auto& numbers) {
    key.push_back(numbers.size());
    for (const int k : numbers) key.push_back(static_cast<uint64_t>(k));
  };
  key.push_back(gradient_target ? gradient_target->id() : 0);
  key.push_back(partial_inputs_reused);
  key.push_back(static_cast<uint64_t>(limits.max_bytes));
  key.push_back(mutable_layouts.size());
  for (const MutableLayout& layout : mutable_layouts) {
    key.push_back(static_cast<uint64_t>(layout.input));
    key.push_back(layout.dims.value_or(~uint64_t{0}));
  }
  append_numbers(parameters);
  append_numbers(factory_inputs);
  key.push_back(preferred_layouts.size());
  for (const SpecPtr& layout : preferred_layouts) key.push_back(layout ? layout->id() : 0);
}

}  // namespace dtensor
