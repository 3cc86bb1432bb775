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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/limits.h"
#include "plan/spec.h"

namespace dtensor {

struct ArgSlot {
  enum class Kind : uint8_t { kStatic, kTensor, kTensorList };
  Kind kind = Kind::kStatic;
  int first = 0;  // index into inputs
  int count = 0;  // 1 for kTensor
};

// An input that is written to, and whose layout may change with that: nobody asked for it.
struct FreeLayout {
  int input = 0;  // among OpCall::inputs
  // Nothing: it may become anything, as nobody shares it. Of one that is shared: a bit per dim that all who share it
  // have whole, along which they may be split together where they are replicated.
  std::optional<uint64_t> dims = std::nullopt;
};

struct OpCall {
  explicit OpCall(c10::OperatorHandle handle) : op(handle) {}
  // For tests and tools: the operator by name ("aten::mm", "aten::sum.dim_IntList"). Tensor arguments take `specs` in
  // schema order (null: absent; a list takes what the others leave), the other arguments `args`; what is missing at the
  // end of either is the default, or absent. `args` may also list all arguments: then those in the place of a tensor
  // only say whether it is there (None and undefined tensors: absent, no spec taken).
  static OpCall make(const std::string& op_name, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args = {});

  c10::OperatorHandle op;
  DeviceMesh mesh;
  std::vector<c10::IValue> args;  // one per schema argument; None where the argument is a tensor
  std::vector<ArgSlot> slots;     // one per schema argument
  std::vector<SpecPtr> inputs;
  std::vector<FreeLayout> free_layouts;
  // Inputs that are parameters, or views of them, whose gradients will come back to the layout that they are in: where
  // one moves for the operator, its gradient has to move, too.
  std::vector<int> parameters;
  // Inputs that no tensor was read for, as zeros and noise: that they are replicated does not say that all ranks should
  // work on all of their rows.
  std::vector<int> unplaced;
  // Whatever is Partial and multiplied will be read once more, as most gradients are in backward.
  bool reads_factors_again = false;
  // Empty, or per input: the layout that its elements would have had its operator's inputs stayed where they were (of
  // rows that were looked up for a split batch, the split of the batch), to which it is best reduced where it is
  // Partial now, and brought where it has strayed to other shards. Null: that is not known.
  std::vector<SpecPtr> homes;
  // In backward, for operators that ask for it: the layout that the gradient they compute will be brought to.
  SpecPtr gradient_target;
  Limits limits;  // of what brings an input to another layout
  // Of each output, once the engine knows: when it asks for strategies it does. Empty before.
  std::vector<std::optional<c10::ScalarType>> result_dtypes;

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
  bool is_free(size_t input) const;  // among free_layouts
  // May a written input be brought from one placement to another, as far as whoever shares it is concerned?
  bool may_become(size_t input, const Placement& from, const Placement& to) const;
  bool is_parameter(size_t input) const;  // among parameters
  bool is_unplaced(size_t input) const;   // among unplaced
  // Where an input is at home along a mesh dim: a Shard. Null: it is not known, or the input is there.
  const Placement* home(size_t input, int64_t mesh_dim) const;
  // Schema argument that a schema return is, as `self` of in-place operators is; -1: a result of its own, or a view.
  int written_by_return(size_t r) const;
  // The call as its functional form has it: out= arguments are no inputs. They are the last ones, so the others stay.
  OpCall without_outs() const;

  int64_t get_int(std::string_view name) const;
  bool get_bool(std::string_view name) const;
  std::optional<int64_t> get_optional_int(std::string_view name) const;
  // int[] and int[1] alike; empty optional list: nullopt.
  std::optional<std::vector<int64_t>> get_ints(std::string_view name) const;

  // "aten::mm(f32[4, 6](S(0)), f32[6, 2](R))"
  std::string to_string() const;
};

// "aten.sum.dim_IntList", "aten.mm.default": as Python names operators.
std::string dotted_name(const c10::OperatorHandle& op);

// The class of a number (int, float, complex, bool); kOrdinary for any other value.
NumberClass number_class(const c10::IValue& value);

// A dim counted from the end if negative. Error (c10::Error, IndexError): out of range.
int64_t wrap_dim(int64_t dim, int64_t ndim);

}  // namespace dtensor
