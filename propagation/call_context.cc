#include "propagation/call_context.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <concepts>
#include <cstring>

namespace dtensor {
namespace {

using Numbers = c10::SmallVectorImpl<int>;

bool has_number(const Numbers& numbers, size_t input) {
  return std::find(numbers.begin(), numbers.end(), static_cast<int>(input)) != numbers.end();
}

// ------------------------------------------------------------ every kind of member: is it set, and its key

uint64_t number_of(const SpecPtr& spec) { return spec ? spec->id() : 0; }
uint64_t number_of(const Limits& limits) { return limits.any() ? static_cast<uint64_t>(limits.max_bytes) : 0; }
template <std::integral T>
uint64_t number_of(T number) {
  return static_cast<uint64_t>(number);
}

template <typename T>
bool is_set(const T& hint) {
  if constexpr (requires { hint.members(); }) {
    return std::apply([](const auto&... member) { return (is_set(member) || ...); }, hint.members());
  } else if constexpr (requires { hint.empty(); }) {
    return !hint.empty();
  } else {
    return number_of(hint) != 0;
  }
}

template <typename T>
void append_hint(CacheKey& key, const T& hint) {
  if constexpr (requires { hint.members(); }) {
    std::apply([&](const auto&... member) { (append_hint(key, member), ...); }, hint.members());
  } else if constexpr (requires { hint.empty(); }) {
    key.push_back(hint.size());
    for (const auto& element : hint) append_hint(key, element);
  } else {
    key.push_back(number_of(hint));
  }
}

// ------------------------------------------------------------ whether a member says the same of two inputs

template <typename T>
bool is_alike(const T&, size_t, size_t) {  // of no input
  static_assert(
      !requires(const T& t) { t.empty(); }, "a list of inputs needs a comparison of its own");
  return true;
}
template <unsigned kInline>
bool is_alike(const c10::SmallVector<int, kInline>& numbers, size_t a, size_t b) {
  return has_number(numbers, a) == has_number(numbers, b);
}
template <unsigned kInline>
bool is_alike(const c10::SmallVector<TensorHints, kInline>& inputs, size_t a, size_t b) {
  const TensorHints none;
  const auto of = [&](size_t i) { return (i < inputs.size() ? inputs[i] : none).members(); };
  return of(a) == of(b);
}

}  // namespace

std::string TensorHints::to_string() const {
  const auto& [preferred] = *this;
  return preferred ? "preferred layout: " + dtensor::to_string(preferred->placements()) : "";
}

std::string ScopeHints::to_string() const {
  const auto& [limits, keep_class_shards] = *this;  // all: a member that is missing is a compile error
  std::string text;
  if (limits.any()) text += c10::str(" within ", limits.max_bytes, " bytes");
  if (keep_class_shards) text += " in a LossParallel scope";
  return text;
}

bool CallContext::is_mutable(size_t input) const { return has_number(mutable_layouts, input); }

bool CallContext::is_parameter(size_t input) const { return has_number(parameters, input); }

bool CallContext::is_factory_input(size_t input) const { return has_number(factory_inputs, input); }

const Spec* CallContext::preferred_layout(size_t input) const {
  return input < inputs.size() ? inputs[input].preferred_layout.get() : nullptr;
}

bool CallContext::has_same_hints(size_t a, size_t b) const {
  return std::apply([&](const auto&... member) { return (is_alike(member, a, b) && ...); }, members());
}

void CallContext::append_to_key(CacheKey& key) const {
  std::apply(
      [&](const auto&... member) {
        uint64_t those_set = 0, bit = 1;
        ((those_set |= is_set(member) ? bit : 0, bit <<= 1), ...);
        key.push_back(those_set);
        ((is_set(member) ? append_hint(key, member) : void()), ...);
      },
      members());
}

namespace internal {

void append_text(CacheKey& key, std::string_view text) {
  key.push_back(text.size());
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    key.push_back(word);
  }
}

}  // namespace internal

}  // namespace dtensor
