// One call of an operator as the engine sees it: schema, specs of the tensor arguments, values of the others.
//
// Tensor arguments are flattened to `inputs` in schema order, the elements of list arguments one by one; an absent
// optional tensor is a null entry. No data is reachable from here, so rules cannot depend on any.
//
//   FactorRule along_dim(const OpCall& call) {  // of a rule: dim `dim` of `self` is computed whole
//     const int64_t dim = wrap_dim(call.get_int("dim"), call.input("self")->ndim());
//     ...
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/spec.h"
#include "propagation/call_context.h"

namespace dtensor {

struct ArgSlot {
  enum class Kind : uint8_t { kStatic, kTensor, kTensorList };
  static Kind kind_of(const c10::Type& type);  // of an argument of that type, optional or not
  Kind kind = Kind::kStatic;
  int first = 0;  // index into inputs
  int count = 0;  // 1 for kTensor
};

// What a call returns.
struct OutputMetas {
  // One entry per output tensor, in schema order, list elements one by one; nullopt: an undefined tensor.
  std::vector<std::optional<TensorMeta>> tensors;
  std::vector<int> counts;  // per schema return: number of tensors; -1 for a single Tensor
  // For views: the start of each in the memory of its base, in its own elements. Empty: all 0.
  std::vector<int64_t> offsets;
};

struct OpCall {
  explicit OpCall(c10::OperatorHandle handle) : op(handle) {}
  // For tests and tools: the operator by name ("aten::mm", "aten::sum.dim_IntList"). Tensor arguments take `specs` in
  // schema order (null: absent; a list takes the remaining ones), the other arguments `args`; missing ones at the end
  // of either are the default, or absent. `args` may also list all arguments: then those in the place of a tensor only
  // determine whether it is present (None and undefined tensors: absent, no spec taken).
  static OpCall make(const std::string& op_name, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args = {});

  c10::OperatorHandle op;
  DeviceMesh mesh;
  std::vector<c10::IValue> args;  // one per schema argument; None where the argument is a tensor
  std::vector<ArgSlot> slots;     // one per schema argument
  std::vector<SpecPtr> inputs;
  CallContext context;
  // What the call returns, known when the engine calls a rule for strategies. Null before.
  std::shared_ptr<const OutputMetas> results;

  const c10::FunctionSchema& schema() const { return op.schema(); }
  std::string name() const;  // "aten::sum.dim_IntList"

  // Index of a schema argument; -1 if the schema has none of that name.
  int arg_index(std::string_view name) const;
  bool has_arg(std::string_view name) const { return arg_index(name) >= 0; }
  const c10::IValue& arg(std::string_view name) const;
  // Index into inputs of a tensor argument; -1 if the schema has none of that name.
  int input_index(std::string_view name) const;
  const Spec* input(std::string_view name) const;  // null if absent
  std::string input_name(int i) const;             // "mat2"; "tensors[1]" in a list

  // Per input: whether the operator writes to it (in-place, out=).
  std::vector<bool> written() const;
  // The placement that an input prefers along a mesh dim, a Shard. Null: not known, or the input has it.
  const Placement* preferred_placement(size_t input, int64_t mesh_dim) const;
  // The schema argument that a schema return aliases, such as `self` of in-place operators; -1: a new tensor, or a
  // view.
  int written_by_return(size_t r) const;
  // The call of the functional form: without the out= arguments, which are the last ones, so that other indices stay.
  OpCall without_outs() const;

  int64_t get_int(std::string_view name) const;
  bool get_bool(std::string_view name) const;
  std::optional<int64_t> get_optional_int(std::string_view name) const;
  // int[] and int[1] alike; empty optional list: nullopt.
  std::optional<std::vector<int64_t>> get_ints(std::string_view name) const;

  // "aten::mm(f32[4, 6](S(0)), f32[6, 2](R))"
  std::string to_string() const;
};

namespace internal {

// "aten.sum.dim_IntList", "aten.mm.default": as Python names operators.
std::string dotted_name(const c10::OperatorHandle& op);

// OpCall::input_name() of a call with these arguments.
std::string input_name(const c10::FunctionSchema& schema, c10::ArrayRef<ArgSlot> slots, int i);

// The class of a number (int, float, complex, bool); kOrdinary for any other value.
NumberClass number_class(const c10::IValue& value);

}  // namespace internal

// A dim counted from the end if negative. Error (c10::Error, IndexError): out of range.
int64_t wrap_dim(int64_t dim, int64_t ndim);

}  // namespace dtensor
