#include "propagation/op_call.h"

#include <ATen/core/jit_type.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace dtensor {
using namespace internal;

namespace {

bool is_absent(const c10::IValue& value) { return value.isNone() || (value.isTensor() && !value.toTensor().defined()); }

std::string print(const c10::IValue& value) {
  if (value.isNone()) return "None";
  std::ostringstream out;
  out << value;
  return out.str();
}

std::pair<std::string, std::string> split_name(const std::string& name) {
  size_t dot = name.find('.');
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

ArgSlot::Kind ArgSlot::kind_of(const c10::Type& type) {
  if (auto optional = type.cast<c10::OptionalType>()) return kind_of(*optional->getElementType());
  if (type.kind() == c10::TypeKind::TensorType) return Kind::kTensor;
  const auto list = type.cast<c10::ListType>();
  return list && kind_of(*list->getElementType()) == Kind::kTensor ? Kind::kTensorList : Kind::kStatic;
}

OpCall OpCall::make(const std::string& op_name, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args) {
  auto [name, overload] = split_name(op_name);
  OpCall call(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
  const auto& arguments = call.schema().arguments();
  int single_tensors = 0, lists = 0;
  for (const auto& argument : arguments) {
    auto kind = ArgSlot::kind_of(*argument.type());
    single_tensors += kind == ArgSlot::Kind::kTensor;
    lists += kind == ArgSlot::Kind::kTensorList;
  }
  TORCH_CHECK(lists <= 1, op_name, ": OpCall::make cannot divide its specs among several lists");
  const bool full = args.size() == arguments.size();

  size_t next_spec = 0, next_arg = 0;
  for (size_t a = 0; a < arguments.size(); ++a) {
    ArgSlot slot;
    slot.kind = ArgSlot::kind_of(*arguments[a].type());
    c10::IValue value;
    if (slot.kind == ArgSlot::Kind::kStatic) {
      size_t from = full ? a : next_arg++;
      if (from < args.size()) {
        value = args[from];
      } else if (arguments[a].default_value()) {
        value = *arguments[a].default_value();
      }
    } else {
      const bool absent = full && is_absent(args[a]);
      slot.first = static_cast<int>(call.inputs.size());
      int64_t left = static_cast<int64_t>(specs.size() - next_spec);
      if (slot.kind == ArgSlot::Kind::kTensor) {
        slot.count = 1;
        --single_tensors;
        call.inputs.push_back(absent || left == 0 ? nullptr : specs[next_spec++]);
      } else if (!absent) {
        slot.count = static_cast<int>(std::max<int64_t>(0, left - single_tensors));
        for (int i = 0; i < slot.count; ++i) call.inputs.push_back(specs[next_spec++]);
      }
    }
    call.args.push_back(std::move(value));
    call.slots.push_back(slot);
  }
  TORCH_CHECK(next_spec == specs.size(), op_name, ": ", specs.size(), " specs given, ", next_spec, " taken");
  for (const auto& input : call.inputs) {
    if (input && !call.mesh.defined()) call.mesh = input->mesh();
  }
  return call;
}

std::string OpCall::name() const {
  const auto& n = op.operator_name();
  return n.overload_name.empty() ? n.name : absl::StrCat(n.name, ".", n.overload_name);
}

namespace internal {

std::string dotted_name(const c10::OperatorHandle& op) {
  const auto& n = op.operator_name();
  std::string base = n.name;
  if (size_t colons = base.find("::"); colons != std::string::npos) base.replace(colons, 2, ".");
  return absl::StrCat(base, ".", n.overload_name.empty() ? "default" : n.overload_name);
}

}  // namespace internal

int OpCall::arg_index(std::string_view name) const {
  const auto& arguments = schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (arguments[a].name() == name) return static_cast<int>(a);
  }
  return -1;
}

const c10::IValue& OpCall::arg(std::string_view name) const {
  int a = arg_index(name);
  TORCH_CHECK(a >= 0, this->name(), " has no argument '", name, "'");
  return args[a];
}

int OpCall::input_index(std::string_view name) const {
  int a = arg_index(name);
  return a < 0 || slots[a].kind == ArgSlot::Kind::kStatic || slots[a].count == 0 ? -1 : slots[a].first;
}

const Spec* OpCall::input(std::string_view name) const {
  int i = input_index(name);
  return i < 0 ? nullptr : inputs[i].get();
}

std::string OpCall::input_name(int i) const { return internal::input_name(schema(), slots, i); }

namespace internal {

std::string input_name(const c10::FunctionSchema& schema, c10::ArrayRef<ArgSlot> slots, int i) {
  for (size_t a = 0; a < slots.size(); ++a) {
    const ArgSlot& slot = slots[a];
    if (slot.kind == ArgSlot::Kind::kStatic || i < slot.first || i >= slot.first + slot.count) continue;
    const std::string& name = schema.arguments()[a].name();
    return slot.kind == ArgSlot::Kind::kTensor ? name : absl::StrCat(name, "[", i - slot.first, "]");
  }
  return absl::StrCat("input ", i);
}

}  // namespace internal

std::vector<bool> OpCall::written() const {
  std::vector<bool> result(inputs.size(), false);
  for (size_t a = 0; a < slots.size(); ++a) {
    const auto* alias = schema().arguments()[a].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for (int i = 0; i < slots[a].count; ++i) result[slots[a].first + i] = true;
  }
  return result;
}

int OpCall::written_by_return(size_t r) const {
  const auto* alias = schema().returns()[r].alias_info();
  if (alias == nullptr || !alias->isWrite()) return -1;
  const auto& arguments = schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    const auto* other = arguments[a].alias_info();
    if (other != nullptr && *other == *alias) return static_cast<int>(a);
  }
  return -1;
}

const Placement* OpCall::preferred_placement(size_t input, int64_t mesh_dim) const {
  const Spec* preferred = context.preferred_layout(input);
  if (preferred == nullptr) return nullptr;
  const Placement& p = preferred->placements()[mesh_dim];
  return p.is_shard() && p != inputs[input]->placements()[mesh_dim] ? &p : nullptr;
}

OpCall OpCall::without_outs() const {
  OpCall result = *this;
  size_t kept = inputs.size();
  for (size_t a = 0; a < slots.size(); ++a) {
    if (slots[a].kind == ArgSlot::Kind::kStatic || !schema().arguments()[a].is_out()) continue;
    if (slots[a].count > 0) kept = std::min(kept, static_cast<size_t>(slots[a].first));
    result.slots[a].count = 0;
  }
  for (const ArgSlot& slot : result.slots) {
    TORCH_INTERNAL_ASSERT(slot.count == 0 || static_cast<size_t>(slot.first) < kept, name(),
                          ": out arguments are not last");
  }
  result.inputs.resize(kept);
  return result;
}

int64_t OpCall::get_int(std::string_view name) const {
  const c10::IValue& value = arg(name);
  if (value.isSymInt()) return value.toSymInt().guard_int(__FILE__, __LINE__);
  TORCH_CHECK(value.isInt() || value.isBool(), this->name(), ": argument '", name, "' is no integer but ",
              print(value));
  return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
}

bool OpCall::get_bool(std::string_view name) const {
  const c10::IValue& value = arg(name);
  TORCH_CHECK(value.isBool() || value.isInt(), this->name(), ": argument '", name, "' is no bool but ", print(value));
  return value.isBool() ? value.toBool() : value.toInt() != 0;
}

std::optional<int64_t> OpCall::get_optional_int(std::string_view name) const {
  if (arg(name).isNone()) return std::nullopt;
  return get_int(name);
}

std::optional<std::vector<int64_t>> OpCall::get_ints(std::string_view name) const {
  const c10::IValue& value = arg(name);
  if (value.isNone()) return std::nullopt;
  std::vector<int64_t> result;
  if (value.isIntList()) {
    result = value.toIntVector();
  } else if (value.isSymIntList()) {
    for (const auto& i : value.toSymIntVector()) result.push_back(i.guard_int(__FILE__, __LINE__));
  } else if (value.isList() && value.toListRef().empty()) {
    // An empty list may come without its element type.
  } else {
    result.push_back(get_int(name));
  }
  const bool optional = schema().arguments()[arg_index(name)].type()->kind() == c10::TypeKind::OptionalType;
  if (optional && result.empty()) return std::nullopt;
  return result;
}

std::string OpCall::to_string() const {
  std::string text;
  text.reserve(128);
  absl::StrAppend(&text, name(), "(");
  const char* separator = "";
  auto append_input = [&](int i) { absl::StrAppend(&text, inputs[i] ? inputs[i]->to_short_string() : "None"); };
  for (size_t a = 0; a < slots.size(); ++a) {
    const ArgSlot& slot = slots[a];
    const auto& argument = schema().arguments()[a];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      std::string value = print(args[a]);
      if (argument.default_value() && value == print(*argument.default_value())) continue;
      absl::StrAppend(&text, separator, argument.name(), "=", value);
    } else if (slot.kind == ArgSlot::Kind::kTensor) {
      if (slot.count == 0) continue;
      absl::StrAppend(&text, separator);
      append_input(slot.first);
    } else {
      absl::StrAppend(&text, separator, "[");
      for (int i = 0; i < slot.count; ++i) {
        if (i > 0) absl::StrAppend(&text, ", ");
        append_input(slot.first + i);
      }
      absl::StrAppend(&text, "]");
    }
    separator = ", ";
  }
  text += ')';
  return text;
}

namespace internal {

NumberClass number_class(const c10::IValue& value) {
  c10::complex<double> number = 1;
  if (value.isDouble()) {
    number = value.toDouble();
  } else if (value.isComplexDouble()) {
    number = value.toComplexDouble();
  } else if (value.isInt()) {
    number = value.toInt() == 0 ? 0 : 1;
  } else if (value.isBool()) {
    number = value.toBool() ? 1 : 0;
  }
  if (!std::isfinite(number.real()) || !std::isfinite(number.imag())) return NumberClass::kNonFinite;
  return number == c10::complex<double>(0) ? NumberClass::kZero : NumberClass::kOrdinary;
}

}  // namespace internal

int64_t wrap_dim(int64_t dim, int64_t ndim) { return c10::maybe_wrap_dim(dim, ndim); }

}  // namespace dtensor
