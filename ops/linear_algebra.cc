// Decompositions, inverses, systems of equations and functions of matrices: every matrix whole, batches of them may be
// split, and so may the right hand sides of one system.
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>

#include <algorithm>
#include <string>

#include "comm/scope.h"
#include "dtensor/extend/dispatch.h"
#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"
#include "ops/arguments.h"
#include "ops/core_dims.h"
#include "ops/meta_tensor.h"
#include "ops/plain_numbers.h"

namespace dtensor {
namespace {

const CoreDimsOp kDecompositions[] = {
    {"aten::_linalg_svd", "...MN->...AB,...K,...CD"},
    {"aten::_linalg_eigh", "...MN->...K,...AB"},
    {"aten::linalg_eig", "...MN->...M,...MN"},
    {"aten::_linalg_eigvals", "...MN->...M"},
    {"aten::linalg_qr", "...MN->...AB,...CD"},
    {"aten::geqrf", "...MN->...MN,...K"},
    {"aten::linalg_householder_product", "...MN,...K->...MN"},
    {"aten::linalg_cholesky_ex", "...MN->...MN,..."},
    {"aten::cholesky", "K->K|...MN->...MN"},
    {"aten::linalg_lu", "...MN->...AB,...CD,...EF"},
    {"aten::linalg_lu_factor_ex", "...MN->...MN,...K,..."},
    {"aten::lu_unpack", "...MN,...K->...AB,...CD,...EF"},
    {"aten::linalg_ldl_factor_ex", "...MN->...MN,...M,..."},
    {"aten::_linalg_det", "...MN->...,...MN,...K"},
    {"aten::_linalg_slogdet", "...MN->...,...,...MN,...K"},
    {"aten::linalg_inv_ex", "...MN->...MN,..."},
    {"aten::cholesky_inverse", "...MN->...MN"},
    {"aten::linalg_pinv.atol_rtol_tensor", "...MN,...,...->...NM"},
    {"aten::linalg_matrix_exp", "...MN->...MN"},
};

// Is the right hand side of a system a vector, or a batch of them? As ATen decides it.
bool is_vector(const OpCall& call) {
  const Shape &a = call.inputs[0]->sizes(), &b = call.inputs[1]->sizes();
  return b.size() == 1 || (a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin()));
}
const char* solve_equation(const OpCall& call) {
  if (is_vector(call)) return "...MN,...K->...K,...MN,...M,...";
  return call.get_bool("left") ? "...MN,...Pc->...Pc,...MN,...M,..." : "...MN,...cQ->...cQ,...MN,...M,...";
}
// With "gels", which takes the rank to be full, there is none among the results.
const char* least_squares_equation(const OpCall& call) {
  const auto& driver = call.arg("driver");
  const bool ranked =
      driver.isNone() ? call.mesh.world().device_type() == c10::DeviceType::CPU : driver.toStringRef() != "gels";
  if (is_vector(call)) return ranked ? "...MN,...M->...N,...R,...,...S" : "...MN,...M->...N,...R,...T,...S";
  return ranked ? "...MN,...Mc->...Nc,...c,...,...S" : "...MN,...Mc->...Nc,...c,...T,...S";
}

// Right hand sides that stand beside each other, as columns, or, where the unknown is on the left, as rows.
const char* lu_solve_equation(const OpCall& call) {
  return call.get_bool("left") ? "...MN,...K,...Pc->...Pc" : "...MN,...K,...cQ->...cQ";
}
const char* triangular_equation(const OpCall& call) {
  return call.get_bool("left") ? "...MN,...Pc->...Pc" : "...MN,...cQ->...cQ";
}
const char* ormqr_equation(const OpCall& call) {
  return call.get_bool("left") ? "...MN,...K,...Pc->...Pc" : "...MN,...K,...cQ->...cQ";
}

const CoreDimsOp kSystems[] = {
    {.op = "aten::_linalg_solve_ex", .equation = "", .choose = solve_equation, .aside = 'c'},
    {.op = "aten::linalg_lstsq", .equation = "", .choose = least_squares_equation, .aside = 'c'},
    {.op = "aten::linalg_lu_solve", .equation = "", .linear = "B", .choose = lu_solve_equation},
    {"aten::linalg_ldl_solve", "...MN,...K,...Pc->...Pc", "B"},
    {.op = "aten::linalg_solve_triangular", .equation = "", .linear = "B", .choose = triangular_equation},
    {.op = "aten::triangular_solve", .equation = "...Pc,...MN->...Pc,...MN", .aside = 'c'},
    {"aten::cholesky_solve", "...Pc,...MN->...Pc", "self"},
    {"aten::_cholesky_solve_helper", "...Pc,...MN->...Pc", "self"},
    {.op = "aten::ormqr", .equation = "", .linear = "input3", .choose = ormqr_equation},
};

// Bilinear in vectors of three.
CoreDims cross_dims(const OpCall& call) {
  CoreDims dims{pointwise(call), {}};
  dims.rule.blocked.push_back(
      static_cast<int>(wrap_dim(call.get_int("dim"), static_cast<int64_t>(dims.rule.outputs[0].size()))));
  dims.rule.terms = {{0, 1}};
  return dims;
}

// Says of which matrix of a batch a computation failed, on all ranks alike, so that a program may catch it: whether any
// matrix failed is one number, which is reduced where ranks share the batch. Only then are the codes gathered.
void check_errors(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor info = args.tensor("info");
  if (info.numel() == 0) return torch::jit::drop(stack, op.schema().arguments().size());
  const at::Tensor worst = at::amax(info.abs());
  const at::Tensor code = redistribute_below_autograd(
      worst, Placements(spec_of(worst)->mesh().ndim(), Replicate()),
      {c10::toString(op.operator_name()), "info", current_scope().module_path, /*implicit=*/true});
  const bool has_data = !peek_meta(info).locals.empty();
  if (!has_data || plain_numbers(code, op, "info").item<int64_t>() == 0)
    return torch::jit::drop(stack, op.schema().arguments().size());
  args.set("info", plain_numbers(info, op, "info"));
  LocalGuard guard;
  op.callBoxed(stack);
}

// The forms that are asked to check for errors: after all ranks have computed, so that none is left behind. Their last
// result says what went wrong.
void checked(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Arguments args(op, stack);
  const bool checks = args["check_errors"].toBool();
  const bool is_matrix = torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor().dim() == 2;
  args.set("check_errors", false);
  dispatch_by_rule(op, stack);
  const std::string name = op.schema().name();
  if (checks)
    at::_linalg_check_errors(stack.back().toTensor(), "torch.linalg." + name.substr(name.find("linalg_") + 7),
                             is_matrix);
}

}  // namespace

const RuleFamily linear_algebra_rules("linear_algebra", [](RuleRegistry& registry) {
  for (CoreDimsOp op : kDecompositions) op.any_size = true, add_core_dims(registry, op);
  for (CoreDimsOp op : kSystems) op.any_size = true, add_core_dims(registry, op);
  registry.add("aten::linalg_cross", core_dims_rule(cross_dims, {}));
  registry.add_handler("aten::_linalg_check_errors", check_errors);
  for (const char* op : {"aten::linalg_inv_ex", "aten::linalg_cholesky_ex", "aten::linalg_lu_factor_ex",
                         "aten::linalg_ldl_factor_ex", "aten::_linalg_solve_ex"})
    registry.add_handler(op, checked);
});

}  // namespace dtensor
