// Finds the functional form of an operator that writes to its arguments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "propagation/op_call.h"

namespace dtensor::internal {

// Whether there are out= arguments.
bool has_outs(const c10::FunctionSchema& schema);

// aten::index_add for aten::index_add.out, aten::sum.dim_IntList for aten::sum.IntList_out: arguments of the same names
// and types, and any others have defaults. nullopt: there is no such form.
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op);
// The same call of that form. Arguments that out= lacks (the dtype and device of zeros_like) have their defaults.
std::optional<OpCall> as_functional(const OpCall& call);
// For OpRule::metas, which gets an out= call without its out= arguments (OpCall::without_outs()), as ATen cannot run
// it: the call of the functional form. Any other call: itself.
OpCall as_runnable(const OpCall& call);

// Name of the functional form of an in-place operator: "aten::add_" -> "aten::add", "aten::__iand__" ->
// "aten::__and__"; "" for others.
std::string functional_name(const std::string& name);

// The arguments of `functional` are those of `out` without the out= ones, and no others.
bool is_functional_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& out);
// The usual overload names of the functional form of an out= operator with this overload name.
std::vector<std::string> usual_functional_overloads(const std::string& overload);

}  // namespace dtensor::internal
