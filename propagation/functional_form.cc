#include "propagation/functional_form.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtensor::internal {
namespace {

bool writes(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); });
}

// The number of arguments that `functional` has in addition to those of the out= form, all with a default; nullopt: not
// its functional form.
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

bool has_outs(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) { return a.is_out(); });
}

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op) {
  static auto& mutex = *new std::mutex;
  static auto& found =
      *new absl::flat_hash_map<c10::OperatorHandle, std::optional<c10::OperatorHandle>, std::hash<c10::OperatorHandle>>;
  std::lock_guard lock(mutex);
  const auto [entry, fresh] = found.try_emplace(op);
  if (fresh) entry->second = search(op);  // goes through all operators
  return entry->second;
}

std::optional<OpCall> as_functional(const OpCall& call) {
  const auto op = functional_form(call.op);
  if (!op) return std::nullopt;
  OpCall result = call.without_outs();
  result.op = *op;
  result.args.clear();
  result.slots.clear();
  for (const auto& argument : op->schema().arguments()) {
    const int a = call.arg_index(argument.name());
    result.args.push_back(a >= 0 ? call.args[a] : *argument.default_value());
    result.slots.push_back(a >= 0 ? call.slots[a] : ArgSlot());
  }
  return result;
}

OpCall as_runnable(const OpCall& call) {
  const auto& arguments = call.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (arguments[a].is_out() && call.slots[a].count == 0) return as_functional(call).value_or(call);
  }
  return call;
}

std::string functional_name(const std::string& name) {
  size_t base = name.find("::");
  base = base == std::string::npos ? 0 : base + 2;
  if (absl::EndsWith(name, "__")) {
    static const auto* const kInplace =
        new std::vector<std::string>{"__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"};
    if (std::find(kInplace->begin(), kInplace->end(), name.substr(base)) == kInplace->end()) return "";
    return absl::StrCat(name.substr(0, base), "__", name.substr(base + 3));
  }
  return absl::EndsWith(name, "_") && name.size() > base + 1 ? name.substr(0, name.size() - 1) : "";
}

bool is_functional_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  size_t i = 0;
  for (const auto& argument : out.arguments()) {
    if (argument.is_out()) continue;
    if (i == functional.arguments().size()) return false;
    const auto& other = functional.arguments()[i++];
    if (other.name() != argument.name() || other.is_out() || *other.type() != *argument.type()) return false;
  }
  return i == functional.arguments().size();
}

std::vector<std::string> usual_functional_overloads(const std::string& overload) {
  std::vector<std::string> result = {"", "default"};
  if (absl::EndsWith(overload, "_out")) result.push_back(overload.substr(0, overload.size() - 4));
  for (const char* usual : {"Tensor", "Scalar", "dim", "self", "dim_IntList"}) result.push_back(usual);
  return result;
}

}  // namespace dtensor::internal
