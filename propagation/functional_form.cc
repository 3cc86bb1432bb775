#include "propagation/functional_form.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace dtensor {
namespace {

bool writes(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); });
}

// How many arguments `functional` has besides those of the out= form, all of them with a default; nullopt: not its
// functional form.
std::optional<size_t> count_defaults(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  if (writes(functional)) return std::nullopt;
  size_t found = 0;
  for (const auto& argument : out.arguments()) {
    if (argument.is_out()) continue;
    const auto index = functional.argumentIndexWithName(argument.name());
    if (!index || *functional.arguments()[*index].type() != *argument.type()) return std::nullopt;
    ++found;
  }
  for (const auto& argument : functional.arguments()) {
    if (!out.argumentIndexWithName(argument.name()) && !argument.default_value()) return std::nullopt;
  }
  return functional.arguments().size() - found;
}

std::optional<c10::OperatorHandle> search(const c10::OperatorHandle& op) {
  std::optional<c10::OperatorHandle> best;
  size_t fewest = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != op.operator_name().name) continue;
    const auto candidate = c10::Dispatcher::singleton().findSchema(name);
    if (!candidate) continue;
    const auto defaults = count_defaults(candidate->schema(), op.schema());
    if (!defaults || (best && *defaults >= fewest)) continue;
    best = candidate;
    fewest = *defaults;
  }
  return best;
}

}  // namespace

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op) {
  static auto& mutex = *new std::mutex;
  static auto& found =
      *new absl::flat_hash_map<c10::OperatorHandle, std::optional<c10::OperatorHandle>, std::hash<c10::OperatorHandle>>;
  std::lock_guard lock(mutex);
  const auto [entry, fresh] = found.try_emplace(op);
  if (fresh) entry->second = search(op);  // goes through all operators
  return entry->second;
}

}  // namespace dtensor
