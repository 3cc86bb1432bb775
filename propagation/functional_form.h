// Finds the functional form of an operator that writes to its arguments. Internal.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor {

// aten::index_add for aten::index_add.out, aten::sum.dim_IntList for aten::sum.IntList_out: arguments of the same names
// and types, and any others have defaults. nullopt: there is no such form.
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op);

// Name of the functional form of an in-place operator: "aten::add_" -> "aten::add", "aten::__iand__" ->
// "aten::__and__"; "" for others.
std::string functional_name(const std::string& name);

// The arguments of `functional` are those of `out` without the out= ones, and no others.
bool is_functional_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& out);
// The usual overload names of the functional form of an out= operator with this overload name.
std::vector<std::string> usual_functional_overloads(const std::string& overload);

}  // namespace dtensor
