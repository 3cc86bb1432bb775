// Handlers of operators on sharded tensors: the user's functions first, then those of the spec's class, then the
// built-in ones; otherwise an error. PyTorch: custom_sharded_op_impl, custom_sharding_spec_op.
//
//   register_custom_op("asin", [](const OpTypes& types, const OpArguments& args, const OpKeywords&, const
//   ProcessGroup&) {
//     return c10::IValue(at::asin(types[0].local_tensor()));
//   });
//   torch::asin(st);      // a plain tensor: the first shard's arcsine
//
// Names are those of LibTorch's dispatcher without "aten::": "asin", "linear", "embedding"; "mylib::op" of others. A
// handler applies to all overloads, in the whole process, until it is unregistered or replaced; ScopedOp registers for
// a block. Thread-safe.
#pragma once

#include <ATen/core/ivalue.h>

#include <any>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

using OpTypes = std::vector<ShardedTensor>;  // the sharded tensors among the arguments, also those in lists
using OpArguments = std::vector<c10::IValue>;
using OpKeywords = std::map<std::string, c10::IValue>;  // keyword-only arguments of the operator's schema
// Returns a tuple for several results. Checked before the call: there is a sharded tensor among the arguments, and all
// belong to one group, `group`.
using OpHandler = std::function<c10::IValue(const OpTypes& types, const OpArguments& args, const OpKeywords& kwargs,
                                            const ProcessGroup& group)>;

template <typename F>
inline constexpr bool is_op_handler =
    std::is_invocable_r_v<c10::IValue, F, const OpTypes&, const OpArguments&, const OpKeywords&, const ProcessGroup&>;

// The class of specs that a handler is for; none: all.
using SpecClass = std::optional<std::type_index>;

// The handler in `function`: an OpHandler, or a pointer to such a function. Error (TypeError): "Custom sharded op
// function expects signature: (types, args, kwargs, process_group), but received signature: ...".
OpHandler checked_handler(const std::any& function);

// A later registration replaces an earlier one.
void register_op(const SpecClass& spec, const std::string& name, OpHandler handler);
// False if there was none.
bool unregister_op(const SpecClass& spec, const std::string& name);

// Other signatures do not compile; those of a std::any are checked when it is registered.
template <typename F>
requires is_op_handler<F>
void register_custom_op(const std::string& name, F handler) {
  register_op(std::nullopt, name, OpHandler(std::move(handler)));
}
inline void register_custom_op(const std::string& name, const std::any& function) {
  register_op(std::nullopt, name, checked_handler(function));
}
inline bool unregister_custom_op(const std::string& name) { return unregister_op(std::nullopt, name); }

// For tensors whose spec is exactly an S, not of a derived class.
template <typename S, typename F>
requires is_op_handler<F>
void register_spec_op(const std::string& name, F handler) {
  register_op(std::type_index(typeid(S)), name, OpHandler(std::move(handler)));
}
template <typename S>
bool unregister_spec_op(const std::string& name) {
  return unregister_op(std::type_index(typeid(S)), name);
}

// Registers for a block; at its end the previous handler is restored.
//   ScopedOp linear(SpecClass(typeid(ChunkShardingSpec)), "linear", my_linear);
class ScopedOp {
 public:
  ScopedOp(SpecClass spec, std::string name, OpHandler handler);
  ScopedOp(std::string name, OpHandler handler) : ScopedOp(std::nullopt, std::move(name), std::move(handler)) {}
  ~ScopedOp();
  ScopedOp(const ScopedOp&) = delete;
  ScopedOp& operator=(const ScopedOp&) = delete;

 private:
  SpecClass spec_;
  std::string name_;
  OpHandler before_;  // null: none
};

// The user's or the spec's handler of an operator; null if there is none.
OpHandler find_op(std::string_view name, const AnyShardingSpec& spec);
// The spec's handler only. Error (c10::Error): "Custom op: linear not registered for ChunkShardingSpec".
OpHandler spec_op(const AnyShardingSpec& spec, std::string_view name);

// The sharded tensors among values, also those in lists, tuples and dicts.
OpTypes sharded_tensors_in(c10::ArrayRef<c10::IValue> values);

// For this folder: the handler if neither the user nor the spec has one.
void register_builtin_op(const std::string& name, OpHandler handler);

// Calls an operator by its name, as LibTorch's dispatcher does for `torch::asin(st)`.
// Errors: ValueError " No input for 'asin'!"; TypeError "... are called without any distributed tensor!"; c10::Error
// "All distributed tensors should use the same ProcessGroup if used together in an op.", "torch function 'asin', with
// args:
// ... and kwargs: ... not supported for ShardedTensor!"; the handler's own.
c10::IValue call_sharded_op(std::string_view name, const OpArguments& args, const OpKeywords& kwargs = {});

// Whether call_sharded_op() would find a handler.
bool has_op(std::string_view name, const AnyShardingSpec& spec);

}  // namespace dtensor::sharded
