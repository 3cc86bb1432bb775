// From an operator that writes to out= arguments to the one that returns new tensors. Internal.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace dtensor {

// aten::index_add for aten::index_add.out, aten::sum.dim_IntList for aten::sum.IntList_out: arguments of the same names
// and types, and any others have defaults. nullopt: there is no such form.
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op);

}  // namespace dtensor
