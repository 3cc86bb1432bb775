#include "sharded/op_registry.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor::sharded {
namespace {

// Handlers of one kind. Handlers are copied out, so that one may register others.
class HandlerTable {
 public:
  OpHandler exchange(const std::string& name, OpHandler handler) {
    std::lock_guard lock(mutex_);
    OpHandler before;
    if (auto it = handlers_.find(name); it != handlers_.end()) {
      before = std::move(it->second);
      handlers_.erase(it);
    }
    if (handler) handlers_.emplace(name, std::move(handler));
    return before;
  }
  OpHandler find(std::string_view name) const {
    std::lock_guard lock(mutex_);
    const auto it = handlers_.find(name);
    return it == handlers_.end() ? nullptr : it->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, OpHandler, std::less<>> handlers_;  // guarded by mutex_
};

// nullopt: the user's.
HandlerTable& table_of(const SpecClass& spec) {
  static auto& mutex = *new std::mutex;
  static auto& tables = *new std::map<SpecClass, std::unique_ptr<HandlerTable>>;
  std::lock_guard lock(mutex);
  auto& table = tables[spec];
  if (!table) table = std::make_unique<HandlerTable>();
  return *table;
}

HandlerTable& builtin_table() {
  static auto& table = *new HandlerTable;
  return table;
}

SpecClass class_of(const AnyShardingSpec& spec) {
  const auto& value = *spec;
  return std::type_index(typeid(value));
}

void collect(const c10::IValue& value, OpTypes& types) {
  if (value.isTensor()) {
    if (is_sharded(value.toTensor())) types.emplace_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) collect(t, types);
  } else if (value.isList()) {
    for (const c10::IValue& v : value.toListRef()) collect(v, types);
  } else if (value.isTuple()) {
    for (const c10::IValue& v : value.toTupleRef().elements()) collect(v, types);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) collect(entry.value(), types);
  }
}

// Without calling operators, which would recurse.
std::string text_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return "undefined";
    return c10::str(is_sharded(t) ? "ShardedTensor" : "Tensor", t.sizes());
  }
  if (value.isTensorList() || value.isList()) {
    std::vector<std::string> texts;
    for (const c10::IValue& v : value.toListRef()) texts.push_back(text_of(v));
    return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
  }
  return c10::str(value);
}

std::string text_of(const OpArguments& args) {
  std::vector<std::string> texts;
  for (const c10::IValue& v : args) texts.push_back(text_of(v));
  return absl::StrCat("(", absl::StrJoin(texts, ", "), ")");
}

std::string text_of(const OpKeywords& kwargs) {
  std::vector<std::string> texts;
  for (const auto& [name, v] : kwargs) texts.push_back(absl::StrCat(name, ": ", text_of(v)));
  return absl::StrCat("{", absl::StrJoin(texts, ", "), "}");
}

const ProcessGroup& group_of(const OpTypes& types) {
  const ProcessGroup& group = types[0].process_group();
  for (const ShardedTensor& t : types) {
    TORCH_CHECK(t.process_group() == group,
                "All distributed tensors should use the same ProcessGroup if used together in an op.");
  }
  return group;
}

}  // namespace

OpHandler checked_handler(const std::any& function) {
  using Pointer = c10::IValue (*)(const OpTypes&, const OpArguments&, const OpKeywords&, const ProcessGroup&);
  if (const auto* handler = std::any_cast<OpHandler>(&function); handler != nullptr && *handler) return *handler;
  if (const auto* pointer = std::any_cast<Pointer>(&function); pointer != nullptr && *pointer != nullptr)
    return *pointer;
  TORCH_CHECK_TYPE(false,
                   "Custom sharded op function expects signature: (types, args, kwargs, process_group), but received "
                   "signature: ",
                   function.has_value() ? c10::demangle(function.type().name()) : std::string("none"));
}

void register_op(const SpecClass& spec, const std::string& name, OpHandler handler) {
  TORCH_CHECK_VALUE(!name.empty(), "[register_op] the operator's name is empty");
  TORCH_CHECK_TYPE(handler != nullptr, "[register_op] the handler of '", name, "' is empty");
  table_of(spec).exchange(name, std::move(handler));
}

bool unregister_op(const SpecClass& spec, const std::string& name) {
  return table_of(spec).exchange(name, nullptr) != nullptr;
}

ScopedOp::ScopedOp(SpecClass spec, std::string name, OpHandler handler) : spec_(spec), name_(std::move(name)) {
  TORCH_CHECK_TYPE(handler != nullptr, "[ScopedOp] the handler of '", name_, "' is empty");
  before_ = table_of(spec_).exchange(name_, std::move(handler));
}

ScopedOp::~ScopedOp() { table_of(spec_).exchange(name_, std::move(before_)); }

OpHandler find_op(std::string_view name, const AnyShardingSpec& spec) {
  if (OpHandler handler = table_of(std::nullopt).find(name)) return handler;
  return table_of(class_of(spec)).find(name);
}

OpHandler spec_op(const AnyShardingSpec& spec, std::string_view name) {
  OpHandler handler = table_of(class_of(spec)).find(name);
  TORCH_CHECK(handler != nullptr, "Custom op: ", name, " not registered for ", spec->name());
  return handler;
}

void register_builtin_op(const std::string& name, OpHandler handler) {
  builtin_table().exchange(name, std::move(handler));
}

OpTypes sharded_tensors_in(c10::ArrayRef<c10::IValue> values) {
  OpTypes types;
  for (const c10::IValue& v : values) collect(v, types);
  return types;
}

bool has_op(std::string_view name, const AnyShardingSpec& spec) {
  return find_op(name, spec) != nullptr || builtin_table().find(name) != nullptr;
}

c10::IValue call_sharded_op(std::string_view name, const OpArguments& args, const OpKeywords& kwargs) {
  TORCH_CHECK_VALUE(!args.empty() || !kwargs.empty(), " No input for '", name, "'!");
  OpTypes types = sharded_tensors_in(args);
  for (const auto& [keyword, v] : kwargs) collect(v, types);
  TORCH_CHECK_TYPE(!types.empty(), "torch function '", name, "', with args: ", text_of(args),
                   " and kwargs: ", text_of(kwargs), " are called without any distributed tensor!");
  const ProcessGroup group = group_of(types);
  OpHandler handler = find_op(name, types[0].sharding_spec());
  if (!handler) handler = builtin_table().find(name);
  TORCH_CHECK(handler != nullptr, "torch function '", name, "', with args: ", text_of(args),
              " and kwargs: ", text_of(kwargs), " not supported for ShardedTensor!");
  return handler(types, args, kwargs, group);
}

}  // namespace dtensor::sharded
